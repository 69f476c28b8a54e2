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
from typing import NamedTuple

from octavo.core.plan import StepPlan
from octavo.core.request import Request, RequestState
from octavo.core.types import BlockId
from octavo.kv.manager import BlockManager
from octavo.metrics.snapshot import BlockMap, EngineSnapshot, ProcessUse, RequestRow, RowState
from octavo.scheduler.scheduler import Scheduler

MAX_COUNT = 0xFFFF
FREE, CACHED, USED, FINDABLE, DRAFT = range(5)
"""Numbers of `BLOCK_STATES`."""


class Asked(NamedTuple):
    """How much somebody wants to know."""

    max_requests: int
    """Rows to make at most."""
    block_range: range | None = None
    """Blocks to describe one by one, in steps of one; None for none."""
    num_text_tokens: int = 0
    """Tokens of each prompt's beginning, and of each output's end, to tell."""


def take_snapshot(
    scheduler: Scheduler,
    preparing: Sequence[Request],
    last_plan: StepPlan | None,
    *,
    now_s: float,
    asked: Asked,
) -> EngineSnapshot:
    """Everything as of now.

    Args:
        preparing: requests that the scheduler has not seen yet.
        last_plan: the last step that ran.
    """
    blocks = scheduler.blocks
    running = running_requests(scheduler)
    fills = open_fills(running, blocks)
    wanted = asked.block_range
    return EngineSnapshot(
        step_id=-1 if last_plan is None else last_plan.step_id,
        block_size=blocks.block_size,
        cache=blocks.stats(),
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting + sum(request.params.n for request in preparing),
        num_wasted_slots=sum(blocks.block_size - fill for fill in fills.values()),
        num_shared_blocks=blocks.num_shared_blocks,
        num_contiguous_slots=sum(_longest(r, scheduler.max_model_len) for r in running),
        rows=tuple(
            _row(request, state, blocks, now_s, asked.num_text_tokens)
            for request, state in islice(
                _in_order(scheduler, running, preparing), asked.max_requests
            )
        ),
        process=_process_use(),
        blocks=None
        if wanted is None
        else _block_map(running, blocks, fills, draft_blocks(scheduler, last_plan), wanted),
    )


def running_requests(scheduler: Scheduler) -> list[Request]:
    """Those that hold blocks, in order of arrival."""
    return [r for r in scheduler.requests if r.state is RequestState.RUNNING]


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


def _longest(request: Request, max_model_len: int) -> int:
    """Tokens that a request may come to."""
    limit = request.params.max_tokens
    return max_model_len if limit is None else min(max_model_len, request.num_prompt_tokens + limit)


def _row(
    request: Request, state: RowState, blocks: BlockManager, now_s: float, num_text_tokens: int
) -> RequestRow:
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
        max_tokens=request.params.max_tokens,
        num_drafted_tokens=request.num_drafted_tokens,
        num_accepted_tokens=request.num_accepted_tokens,
        age_s=now_s - arrival,
        queue_s=None if begun is None else begun - arrival,
        first_token_s=None if first is None else first - arrival,
        inter_token_s=None if first is None or last is None or gaps < 1 else (last - first) / gaps,
        prompt_head=request.prompt_token_ids[:num_text_tokens],
        output_tail=tuple(request.output_token_ids[-num_text_tokens:]) if num_text_tokens else (),
    )


def open_fills(running: Iterable[Request], blocks: BlockManager) -> dict[BlockId, int]:
    """Tokens in each used block that is not full."""
    size = blocks.block_size
    fills: dict[BlockId, int] = {}
    for request in running:
        table, computed = blocks.block_ids(request.request_id), request.num_computed_tokens
        for index in range(computed // size, len(table)):
            block, fill = table[index], max(0, computed - index * size)
            fills[block] = max(fill, fills.get(block, 0))
    return fills


def draft_blocks(scheduler: Scheduler, last_plan: StepPlan | None) -> set[BlockId]:
    """Blocks that the last step wrote guesses into, and that requests still hold."""
    size, found = scheduler.blocks.block_size, set[BlockId]()
    for row in () if last_plan is None else last_plan.rows:
        if row.num_draft_tokens:
            end = row.start + row.num_new_tokens
            table = scheduler.blocks.block_ids(row.request_id)
            found.update(table[(end - row.num_draft_tokens) // size : -(-end // size)])
    return found


def _block_map(
    running: Sequence[Request],
    blocks: BlockManager,
    fills: dict[BlockId, int],
    drafts: set[BlockId],
    wanted: range,
) -> BlockMap:
    """Made for all blocks, of which most are free, and then cut: no loop runs over those."""
    size, num_blocks = blocks.block_size, blocks.num_blocks
    states, tokens = bytearray(num_blocks), bytearray(num_blocks)
    owners = array("i", [-1]) * num_blocks
    for block in blocks.published:
        states[block], tokens[block] = CACHED, size
    for number, request in enumerate(running):
        for block in blocks.block_ids(request.request_id):
            if owners[block] < 0:
                owners[block], tokens[block] = number, size
                states[block] = FINDABLE if states[block] else USED
    for block, fill in fills.items():
        tokens[block] = fill
    for block in drafts:
        states[block] = DRAFT
    part = slice(wanted.start, wanted.stop)
    counts = blocks.ref_counts[part]
    if max(counts, default=0) > MAX_COUNT:
        counts = [min(count, MAX_COUNT) for count in counts]
    return BlockMap(
        first=wanted.start,
        states=bytes(states[part]),
        num_tokens=bytes(tokens[part]),
        ref_counts=little_endian(array("H", counts)),
        owners=little_endian(owners[part]),
        owner_ids=tuple(request.request_id for request in running),
    )


def little_endian(numbers: array[int] | array[float]) -> bytes:
    """The numbers as bytes, in the order that the wire has."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _process_use() -> ProcessUse:
    resident = None
    with contextlib.suppress(OSError, ValueError, IndexError):  # Linux alone has it
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        resident = int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return ProcessUse(pid=os.getpid(), resident_bytes=resident, cpu_s=time.process_time())
