"""One watch over the engine for all who look: it asks, makes an event of the answer, and hands the
same bytes to everybody. With nobody looking there is no task, and the engine notes nothing.

A reader is never waited for. One that has missed an event gets a snapshot of the picture instead,
so that nothing piles up for a page that sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import msgspec

from octavo.core.errors import EngineError
from octavo.front.async_engine import AsyncEngine
from octavo.metrics.live import COLUMNS, Json, Picture, difference, packed, without_nulls
from octavo.metrics.snapshot import BLOCK_STATES, BlockChanges, EngineChanges
from octavo.server.live.samples import Samples

logger = logging.getLogger(__name__)

MAX_REQUESTS = 500
"""Rows that are told of; the totals count all."""
_SHORTEST_S, _LONGEST_S = 0.25, 5.0
_COST_SHARE = 0.005
"""The pause between two looks is so long that they take no more than this share of the time."""
_KEEP_ALIVE_S = 10.0
_NUM_TEXT_TOKENS = 48
_ALIVE = b": alive\n\n"
_ARRAYS = {
    "states": "states",
    "tokens": "num_tokens",
    "ref_counts": "ref_counts",
    "changed_s": "changed_s",
}
_encoder = msgspec.json.Encoder()

Describe = Callable[[EngineChanges], Json]
"""Makes the state that readers see of what the engine says."""


class Hub:
    """Keeps the picture, and everybody's view of it.

    Args:
        describe: called for each answer of the engine.
        shows_text: whether requests carry the beginning of their prompt and the end of their
            output.
    """

    def __init__(self, engine: AsyncEngine, describe: Describe, *, shows_text: bool) -> None:
        self._engine = engine
        self._describe = describe
        self._num_text_tokens = _NUM_TEXT_TOKENS if shows_text else 0
        self._picture = Picture()
        self._samples = Samples(engine.metrics)
        self._num_readers = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._version = 0
        """Of the picture; 0 before there is one."""
        self._last_event = b""
        """Makes the last version of the one before it; empty if that cannot be done."""
        self._snapshot: tuple[int, bytes] = (0, b"")
        self._is_over = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one reader: a snapshot, and then what changes."""
        self._enter()
        seen = 0
        try:
            while True:
                while seen == self._version and not self._is_over:
                    try:
                        await asyncio.wait_for(self._news.wait(), _KEEP_ALIVE_S)
                    except TimeoutError:
                        yield _ALIVE
                if seen == self._version:
                    return
                has_missed = not self._last_event or seen != self._version - 1
                event = self._snapshot_event() if has_missed else self._last_event
                seen = self._version
                yield event
        finally:
            await self._leave()

    def _enter(self) -> None:
        self._num_readers += 1
        if self._task is None:
            self._version, self._snapshot, self._is_over = 0, (0, b""), False
            self._task = asyncio.create_task(self._watch(), name="octavo-live")

    async def _leave(self) -> None:
        self._num_readers -= 1
        if self._num_readers == 0 and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait((task,))
            if self._task is None:
                await self._engine.unwatch()

    async def _watch(self) -> None:
        """Looks again and again, until nobody wants to know or the engine is gone for good."""
        self._samples.begin(time.time())
        afresh = True
        while not self._is_over:
            pause = _SHORTEST_S
            try:
                changes = await self._engine.watch(
                    MAX_REQUESTS, self._num_text_tokens, afresh=afresh
                )
                began = time.perf_counter()
                afresh = False
                self._take_in(changes)
                cost = changes.cost_s + time.perf_counter() - began
                pause = min(_LONGEST_S, max(_SHORTEST_S, cost / _COST_SHARE))
            except EngineError as error:
                afresh = True
                self._lose(error)
            except Exception:
                logger.exception("the live statistics end")
                self._is_over = True
                self._tell()
            await asyncio.sleep(pause)

    def _take_in(self, changes: EngineChanges) -> None:
        state = without_nulls(self._describe(changes))
        patch = difference({} if changes.is_first else self._picture.state, state)
        data: Json = {
            "state": patch,
            "tables": {
                change.request_id: [change.first, change.blocks] for change in changes.tables
            },
        }
        if changes.blocks.ids:
            data["blocks"] = _columns(changes.blocks)
        sample = self._samples.take(state["time"], state)
        if changes.is_first:
            num_blocks = changes.snapshot.cache.num_total_blocks
            first = {"state_names": BLOCK_STATES, "num_blocks": num_blocks}
            empty = {name: "" for name in ("ids", *COLUMNS)}
            data["blocks"] = {**empty, **first, **data.get("blocks", {})}
            data["history"] = self._samples.history()
            self._change("snapshot", data)
            return
        if sample is not None:
            data["sample"] = sample
        if not data["tables"]:
            del data["tables"]
        self._change("delta", data)

    def _lose(self, error: EngineError) -> None:
        """The engine does not answer now."""
        status = self._engine.status
        state = {"time": round(time.time(), 3), "status": status, "problem": str(error)}
        self._is_over = status == "dead"
        if not self._version:
            blocks = {name: "" for name in ("ids", *COLUMNS)}
            empty = {"state_names": BLOCK_STATES, "num_blocks": 0, **blocks}
            data = {"state": state, "tables": {}, "blocks": empty, "history": {}}
            self._change("snapshot", data)
        elif self._picture.state.get("problem") != state["problem"]:
            self._change("delta", {"state": state})
        elif self._is_over:
            self._tell()

    def _change(self, event: str, data: Json) -> None:
        self._last_event = b"" if event == "snapshot" else _event(event, data)
        self._picture.apply(event, cast(Json, msgspec.to_builtins(data)))
        self._version += 1
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _snapshot_event(self) -> bytes:
        """The whole picture, made once for all who want it."""
        if self._snapshot[0] != self._version:
            self._snapshot = self._version, _event("snapshot", self._whole())
        return self._snapshot[1]

    def _whole(self) -> Json:
        picture = self._picture
        columns, changed = picture.columns, picture.columns["changed_s"]
        ids = array("I", [block for block, at in enumerate(changed) if at])
        blocks = {
            name: packed(array(code, [columns[name][block] for block in ids]))
            for name, code in COLUMNS.items()
        }
        first = {"state_names": picture.state_names, "num_blocks": picture.num_blocks}
        return {
            "state": picture.state,
            "tables": {name: [0, table] for name, table in picture.tables.items()},
            "blocks": {**first, "ids": packed(ids), **blocks},
            "history": self._samples.history(),
        }


def _columns(changes: BlockChanges) -> Json:
    """The engine's arrays as they are, in base64; hashes become numbers."""
    columns: dict[str, Any] = {"ids": packed(_array("I", changes.ids))}
    for name, field in _ARRAYS.items():
        columns[name] = packed(_array(COLUMNS[name], getattr(changes, field)))
    digests = array("I", changes.hashes)
    if sys.byteorder == "little":
        digests.byteswap()
    columns["hashes"] = packed(digests)
    return columns


def _array(code: str, raw: bytes) -> array[Any]:
    numbers = array(code, raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _event(name: str, data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(data))
