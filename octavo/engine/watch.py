"""What changes in the engine, for somebody who watches: the first answer is everything, and each
further one what is new. Work is in proportion to what has changed, not to the number of blocks.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence

from octavo.core.plan import StepPlan
from octavo.core.request import Request
from octavo.core.types import BlockId, RequestId
from octavo.engine.snapshot import (
    CACHED,
    DRAFT,
    FINDABLE,
    FREE,
    MAX_COUNT,
    USED,
    Asked,
    draft_blocks,
    little_endian,
    open_fills,
    running_requests,
    take_snapshot,
)
from octavo.kv.manager import BlockManager
from octavo.metrics.snapshot import BlockChanges, EngineChanges, TableChange
from octavo.scheduler.scheduler import Scheduler

HASH_BYTES = 4


class Watch:
    """Remembers what has been told. Exists while somebody watches; `close` it then."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables: dict[RequestId, tuple[BlockId, ...]] = {}
        self._fills: dict[BlockId, int] = {}
        self._drafts: set[BlockId] = set()
        self._is_first = True
        self._journal = scheduler.blocks.begin_journal()

    def close(self) -> None:
        """Nobody watches any more."""
        self._scheduler.blocks.end_journal(self._journal)

    def changes(
        self,
        preparing: Sequence[Request],
        last_plan: StepPlan | None,
        *,
        now_s: float,
        asked: Asked,
    ) -> EngineChanges:
        """What is new since the last call. See `take_snapshot`; no range of blocks is asked for."""
        began, is_first = time.perf_counter(), self._is_first
        self._is_first = False
        snapshot = take_snapshot(
            self._scheduler,
            preparing,
            last_plan,
            now_s=now_s,
            asked=asked._replace(block_range=None),
        )
        running = running_requests(self._scheduler)
        tables = tuple(self._changed_tables(running))
        blocks = self._changed_blocks(running, last_plan, is_first=is_first)
        return EngineChanges(
            is_first=is_first,
            now_s=now_s,
            snapshot=snapshot,
            blocks=blocks,
            tables=tables,
            cost_s=time.perf_counter() - began,
        )

    def _changed_tables(self, running: Iterable[Request]) -> Iterable[TableChange]:
        before, now = self._tables, dict[RequestId, tuple[BlockId, ...]]()
        for request in running:
            name = request.request_id
            table = now[name] = self._scheduler.blocks.block_ids(name)
            known = before.get(name, ())
            if table[: len(known)] == known:
                first = len(known)
                is_same = first == len(table)
            else:
                first = _num_common(known, table)
                is_same = False
            if not is_same:
                yield TableChange(request_id=name, first=first, blocks=table[first:])
        self._tables = now

    def _changed_blocks(
        self, running: Sequence[Request], last_plan: StepPlan | None, *, is_first: bool
    ) -> BlockChanges:
        blocks = self._scheduler.blocks
        touched = blocks.take_journal(self._journal)
        if is_first:
            changed_s = blocks.changed_s
            touched = {block for block in range(blocks.num_blocks) if changed_s[block]}
        fills, drafts = open_fills(running, blocks), draft_blocks(self._scheduler, last_plan)
        before = self._fills
        touched.update(block for block, fill in fills.items() if before.get(block) != fill)
        touched.update(before.keys() - fills.keys())
        touched |= self._drafts ^ drafts
        self._fills, self._drafts = fills, drafts
        return _describe(sorted(touched), blocks, fills, drafts)


def _num_common(one: Sequence[BlockId], other: Sequence[BlockId]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


def _describe(
    ids: Sequence[BlockId], blocks: BlockManager, fills: dict[BlockId, int], drafts: set[BlockId]
) -> BlockChanges:
    size, counts, published = blocks.block_size, blocks.ref_counts, blocks.published
    states, tokens = bytearray(len(ids)), bytearray(len(ids))
    for index, block in enumerate(ids):
        is_findable = block in published
        if counts[block]:
            states[index] = FINDABLE if is_findable else USED
            tokens[index] = fills.get(block, size)
            if block in drafts:
                states[index] = DRAFT
        else:
            states[index] = CACHED if is_findable else FREE
            tokens[index] = size if is_findable else 0
    nothing = bytes(HASH_BYTES)
    return BlockChanges(
        ids=little_endian(array("I", ids)),
        states=bytes(states),
        num_tokens=bytes(tokens),
        ref_counts=little_endian(array("H", [min(counts[block], MAX_COUNT) for block in ids])),
        hashes=b"".join([published.get(block, nothing)[:HASH_BYTES] for block in ids]),
        changed_s=little_endian(array("d", [blocks.changed_s[block] for block in ids])),
    )
