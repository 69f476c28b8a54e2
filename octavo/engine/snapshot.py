"""Answers of the engine about itself, made from the scheduler's and the block manager's books.

Read only, and linear in what is asked for; called between steps, and only when somebody asks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from octavo.core.request import Request, RequestState
from octavo.core.types import BlockId
from octavo.kv.manager import BlockManager
from octavo.metrics.snapshot import BlockMap, EngineSnapshot, ProcessUse, RequestRow, RowState
from octavo.scheduler.scheduler import Scheduler

_MAX_COUNT = 0xFFFF
_USED, _FINDABLE, _CACHED = 2, 3, 1


def take_snapshot(
    scheduler: Scheduler,
    preparing: Sequence[Request],
    *,
    step_id: int,
    now_s: float,
    max_requests: int,
    block_range: range | None,
) -> EngineSnapshot:
    """Everything as of now.

    Args:
        preparing: requests that the scheduler has not seen yet.
        max_requests: how many rows to make at most.
        block_range: blocks to describe one by one, in steps of one; None for none.
    """
    blocks = scheduler.blocks
    running = [r for r in scheduler.requests if r.state is RequestState.RUNNING]
    fills = _open_fills(running, blocks)
    cache, counts = blocks.stats(), blocks.ref_counts
    return EngineSnapshot(
        step_id=step_id,
        block_size=blocks.block_size,
        cache=cache,
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting + sum(request.params.n for request in preparing),
        num_wasted_slots=sum(blocks.block_size - fill for fill in fills.values()),
        num_shared_blocks=cache.num_used_blocks - counts.count(1),
        rows=tuple(
            _row(request, state, blocks, now_s)
            for request, state in islice(_in_order(scheduler, running, preparing), max_requests)
        ),
        process=_process_use(),
        blocks=None if block_range is None else _block_map(running, blocks, fills, block_range),
    )


def _in_order(
    scheduler: Scheduler, running: Iterable[Request], preparing: Iterable[Request]
) -> Iterator[tuple[Request, RowState]]:
    waiting = (r for r in scheduler.requests if r.state is not RequestState.RUNNING)
    states: tuple[tuple[Iterable[Request], RowState], ...] = (
        (running, "running"),
        (waiting, "waiting"),
        (preparing, "preparing"),
    )
    return chain.from_iterable(((request, state) for request in all_) for all_, state in states)


def _row(request: Request, state: RowState, blocks: BlockManager, now_s: float) -> RequestRow:
    num_blocks = len(blocks.block_ids(request.request_id))
    arrival, first, last = request.arrival_s, request.first_token_s, request.last_token_s
    begun = request.first_scheduled_s
    gaps = len(request.output_token_ids) - 1
    return RequestRow(
        id=request.request_id,
        state=state,
        priority=request.priority,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_generated_tokens=len(request.output_token_ids),
        num_blocks=num_blocks,
        num_wasted_slots=num_blocks * blocks.block_size - request.num_computed_tokens,
        num_preemptions=request.num_preemptions,
        age_s=now_s - arrival,
        queue_s=None if begun is None else begun - arrival,
        first_token_s=None if first is None else first - arrival,
        inter_token_s=None if first is None or last is None or gaps < 1 else (last - first) / gaps,
    )


def _open_fills(running: Iterable[Request], blocks: BlockManager) -> dict[BlockId, int]:
    """Tokens in each used block that is not full."""
    size = blocks.block_size
    fills: dict[BlockId, int] = {}
    for request in running:
        table, computed = blocks.block_ids(request.request_id), request.num_computed_tokens
        for index in range(computed // size, len(table)):
            block, fill = table[index], max(0, computed - index * size)
            fills[block] = max(fill, fills.get(block, 0))
    return fills


def _block_map(
    running: Sequence[Request], blocks: BlockManager, fills: dict[BlockId, int], wanted: range
) -> BlockMap:
    """Made for all blocks, of which most are free, and then cut: no loop runs over those."""
    size, num_blocks = blocks.block_size, blocks.num_blocks
    states, tokens = bytearray(num_blocks), bytearray(num_blocks)
    owners = array("i", [-1]) * num_blocks
    for block in blocks.published:
        states[block], tokens[block] = _CACHED, size
    for number, request in enumerate(running):
        for block in blocks.block_ids(request.request_id):
            if owners[block] < 0:
                owners[block], tokens[block] = number, size
                states[block] = _FINDABLE if states[block] else _USED
    for block, fill in fills.items():
        tokens[block] = fill
    part = slice(wanted.start, wanted.stop)
    counts = blocks.ref_counts[part]
    if max(counts, default=0) > _MAX_COUNT:
        counts = [min(count, _MAX_COUNT) for count in counts]
    return BlockMap(
        first=wanted.start,
        states=bytes(states[part]),
        num_tokens=bytes(tokens[part]),
        ref_counts=_little_endian(array("H", counts)),
        owners=_little_endian(owners[part]),
        owner_ids=tuple(request.request_id for request in running),
    )


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _process_use() -> ProcessUse:
    resident = None
    with contextlib.suppress(OSError, ValueError, IndexError):  # Linux alone has it
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        resident = int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessUse(pid=os.getpid(), resident_bytes=resident, cpu_s=time.process_time())
