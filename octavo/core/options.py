"""Flat option names to composed configuration dataclasses, and the fields' own documentation.

One place knows which names exist, so that `LLM(...)`, the command line and the reference page
cannot drift apart.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import os
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from octavo.core.errors import ConfigError

ALIASES = {
    "gpu_memory_utilization": "memory_utilization",
    "num_gpu_blocks_override": "num_blocks",
    "drain_timeout": "drain_timeout_s",
    "request_timeout": "request_timeout_s",
    "slow_client_timeout": "slow_client_timeout_s",
}
"""Names that users of other engines know, and ours."""

SIZE_FIELDS = frozenset({"kv_cache_memory", "max_header_bytes", "max_request_bytes"})
"""Fields in bytes, for which ``4GiB`` may be written."""

_JSON_FIELDS = frozenset({"speculative_config"})
"""Fields with a JSON object as text, for which a dictionary may be given."""

_KINDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
}

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)


def require(condition: bool, message: str) -> None:
    """Raises `ConfigError` with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def parse_size(text: str) -> int:
    """Bytes in ``123``, ``512M``, ``4GiB`` or ``1.5g``; units are powers of 1,024.

    Raises:
        ConfigError: it is none of these.
    """
    match = _SIZE.fullmatch(text.strip())
    require(match is not None, f"{text!r} is not a size: write 4GiB, 512M or bytes")
    assert match is not None  # noqa: S101 - checked above
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


@cache
def field_docs(config: type) -> dict[str, str]:
    """The docstring line under each field of a configuration dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, following in itertools.pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def parts(composed: type) -> Iterator[tuple[str, type]]:
    """(name, dataclass) of each part of a composed configuration."""
    hints = get_type_hints(composed)
    for part in fields(composed):
        yield part.name, hints[part.name]


def part_fields(part: type) -> Iterator[tuple[Field[Any], Any, str]]:
    """(field, resolved type, documentation) of each setting of one part; parts within it are not
    among them."""
    hints, docs = get_type_hints(part), field_docs(part)
    for item in fields(part):
        if not is_dataclass(hints[item.name]):
            yield item, hints[item.name], docs[item.name]


def split_options(composed: type, options: dict[str, object]) -> dict[str, Any]:
    """Groups flat options by the part that owns each name, and builds the parts."""
    owner = {item.name: name for name, part in parts(composed) for item in fields(part)}
    hints = {item.name: hint for _, part in parts(composed) for item, hint, _ in part_fields(part)}
    grouped: dict[str, dict[str, object]] = {name: {} for name, _ in parts(composed)}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name not in owner:
            known = [*owner, *(alias for alias, meant in ALIASES.items() if meant in owner)]
            close = difflib.get_close_matches(name, known, n=3)
            hint = f": did you mean {', '.join(close)}?" if close else ""
            raise ConfigError(f"unknown option {given!r}{hint}")
        grouped[owner[name]][name] = _converted(name, hints[name], value)
    return {name: part(**grouped[name]) for name, part in parts(composed)}


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a value of type ``hint`` may have."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def words(hint: Any) -> list[str]:
    """The strings that a value of type ``hint`` may be, if it may not be any."""
    literals = [member for member in members(hint) if typing.get_origin(member) is Literal]
    return [word for literal in literals for word in typing.get_args(literal)]


def _converted(name: str, hint: Any, value: Any) -> Any:
    """A value as its field holds it: sizes may be text, paths need not be, lists become tuples.

    Raises:
        ConfigError: it is of another type, or none of the words that the field knows.
    """
    kinds = [typing.get_origin(member) or member for member in members(hint)]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name in SIZE_FIELDS and isinstance(value, str):
        return parse_size(value)
    if name in _JSON_FIELDS and isinstance(value, dict):
        return value
    if tuple in kinds and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, bool):
        is_right = bool in kinds
    elif isinstance(value, str):
        is_right = str in kinds or value in words(hint)
    else:
        is_right = type(value) in kinds or (type(value) is int and float in kinds)
    if is_right or (value is None and type(None) in kinds):
        return value
    choices = [*words(hint), *(_KINDS[kind] for kind in kinds if kind in _KINDS)]
    if name in SIZE_FIELDS:
        choices.append("a size such as 4GiB")
    raise ConfigError(f"{name} is {value!r:.60}: use {' or '.join(choices)}")
