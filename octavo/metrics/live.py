"""A live picture of a server, kept by patches: what ``/stats/stream`` sends, and how to take it in.

The state is a JSON object, and its patches are JSON merge patches (RFC 7396): what is null goes,
objects are merged, everything else replaces. Blocks come as arrays, and block tables from the first
entry that has changed. `Picture.apply` is all that a reader needs.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]

COLUMNS = {"states": "B", "tokens": "B", "ref_counts": "H", "hashes": "I", "changed_s": "d"}
"""What is told of each block, and as which numbers (see `array`); ``hashes`` are big-endian."""


class Block(NamedTuple):
    """What a picture shows of one block."""

    state: str
    tokens: int
    ref_count: int
    hash: str
    """The first 8 hexadecimal digits; empty for a block without."""
    changed_s: float
    """By the engine's clock: when it was taken, or given back by its last holder."""


class Picture:
    """A server as of the last event."""

    def __init__(self) -> None:
        self.state: Json = {}
        self.tables: dict[str, list[int]] = {}
        """Block tables of the running requests."""
        self.history: dict[str, list[Any]] = {}
        """Samples of up to 15 minutes, a column each."""
        self.state_names: tuple[str, ...] = ()
        self.columns: dict[str, array[Any]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return len(self.columns.get("states", ()))

    def block(self, number: int) -> Block:
        """One block."""
        states, tokens, counts, hashes, changed = (self.columns[name] for name in COLUMNS)
        digest = hashes[number]
        return Block(
            self.state_names[states[number]],
            tokens[number],
            counts[number],
            f"{digest:08x}" if digest else "",
            changed[number],
        )

    def holders(self, number: int) -> list[str]:
        """The requests that hold a block."""
        return [name for name, table in self.tables.items() if number in table]

    def apply(self, event: str, data: Json) -> None:
        """Takes in an event, ``snapshot`` or ``delta``."""
        if event == "snapshot":
            self.state, self.tables, self.history = {}, {}, data["history"]
            blocks = data["blocks"]
            self.state_names = tuple(blocks["state_names"])
            self.columns = {
                name: array(code, bytes(array(code).itemsize * blocks["num_blocks"]))
                for name, code in COLUMNS.items()
            }
        self.state = merge(self.state, data["state"])
        for name, (first, blocks) in data.get("tables", {}).items():
            self.tables.setdefault(name, [])[first:] = blocks
        rows = self.state.get("requests", {}).get("rows", {})
        for name in [name for name in self.tables if name not in rows]:
            del self.tables[name]
        if data.get("blocks"):
            self._take_blocks(data["blocks"])
        for name, value in data.get("sample", {}).items():
            self.history.setdefault(name, []).append(value)

    def _take_blocks(self, sent: Json) -> None:
        ids = unpacked(sent["ids"], "I")
        for name, code in COLUMNS.items():
            column = self.columns[name]
            for block, value in zip(ids, unpacked(sent[name], code), strict=True):
                column[block] = value


def packed(numbers: array[Any]) -> str:
    """Numbers as base64 of their bytes, little-endian."""
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def unpacked(text: str, code: str) -> array[Any]:
    """What was `packed`."""
    numbers = array(code, base64.b64decode(text))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def merge(old: Any, patch: Any) -> Any:
    """``old`` with a JSON merge patch (RFC 7396) applied; may change ``old``."""
    if not isinstance(patch, dict):
        return patch
    merged = old if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """The merge patch that makes ``new`` of ``old``; nothing in it is null in ``new``."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = difference(before, value)
            if inner:
                patch[name] = inner
        elif value != before:
            patch[name] = value
    return patch


def without_nulls(value: Any) -> Any:
    """An object as a merge patch can describe it: nulls are absent."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value
