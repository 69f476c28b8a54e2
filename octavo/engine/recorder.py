"""Tells of steps what a timeline wants to know; exists only while somebody records.

It keeps the block tables as the plans change them, so that a step costs what it changes, not what
there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from octavo.core.plan import RequestDelta, StepPlan, StepResult, StepTimes
from octavo.core.request import RequestState
from octavo.core.types import AdmissionStop, BlockId, RequestId
from octavo.kv.manager import BlockManager
from octavo.metrics.stats import StepStats
from octavo.scheduler.scheduler import Scheduler
from octavo.timeline.events import (
    AdmissionEvent,
    Beginning,
    BlockStates,
    EndEvent,
    Holding,
    PreemptionEvent,
    RowEvent,
    StepEvent,
    TrimEvent,
)

OnStep = Callable[[StepEvent], None]
MAX_IN_LINE = 100
"""How many of those who wait are told of by name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a step before its result changes the requests."""

    plan: StepPlan
    rows: tuple[RowEvent, ...]
    admitted: tuple[AdmissionEvent, ...]
    preempted: tuple[PreemptionEvent, ...]
    left: tuple[RequestId, ...]
    line: tuple[RequestId, ...]
    num_in_line: int
    stopped: AdmissionStop | None


class Recorder:
    """Follows one engine's steps. `look` comes between `Scheduler.schedule` and
    `Scheduler.commit`, `tell` after the latter."""

    def __init__(self, scheduler: Scheduler, on_step: OnStep, *, now_s: float) -> None:
        self._scheduler = scheduler
        self._on_step = on_step
        self._journal = scheduler.blocks.begin_journal()
        self._tables: dict[RequestId, list[BlockId]] = {}
        self._beginning: Beginning | None = self._look_around(now_s)

    def close(self) -> None:
        """Nobody records any more."""
        self._scheduler.blocks.end_journal(self._journal)

    def look(self, plan: StepPlan) -> Planned:
        """What is known once a step is planned."""
        scheduler, tables = self._scheduler, self._tables
        account, line = scheduler.account, scheduler.line
        preempted = tuple(
            PreemptionEvent(name, other, len(tables.pop(name, ())))
            for name, other in account.preempted
        )
        left = tuple(name for name in plan.released if tables.pop(name, None) is not None)
        requests = {request.request_id: request for request in scheduler.requests}
        starts = {row.request_id: row.start for row in plan.rows} if plan.admitted else {}
        admitted = []
        for new in plan.admitted:
            name = new.request_id
            request = requests[name]
            tables[name] = list(new.block_ids)
            admitted.append(
                AdmissionEvent(
                    name,
                    request.arrival_s,
                    new.num_prompt_tokens,
                    starts[name],
                    new.block_ids,
                    request.num_preemptions > 0,
                )
            )
        rows = []
        for row in plan.rows:
            name = row.request_id
            request = requests[name]
            tables[name] += row.new_block_ids
            known, prompt = request.num_known_tokens, request.num_prompt_tokens
            kept = (known, prompt, row.num_draft_tokens, 0, row.new_block_ids)
            rows.append(RowEvent(name, row.start, row.num_new_tokens, *kept))
        for copy in plan.copies:
            tables[copy.request_id][copy.table_index] = copy.target
        return Planned(
            plan,
            tuple(rows),
            tuple(admitted),
            preempted,
            left,
            tuple(line[:MAX_IN_LINE]),
            len(line),
            account.stopped,
        )

    def tell(
        self,
        planned: Planned,
        result: StepResult | None,
        instants_s: tuple[float, float, float, float],
        deltas: Sequence[RequestDelta],
        stats: StepStats,
    ) -> None:
        """The whole step; ``result`` is None if it failed, ``instants_s`` are its beginning, when
        it was planned, when its result was there, and its end."""
        began_s, planned_s, collected_s, ended_s = instants_s
        rows = planned.rows
        if result is not None:
            rows = tuple(
                row._replace(num_sampled=len(outcome.token_ids))
                for row, outcome in zip(rows, result.rows, strict=True)
            )
        ended = tuple(
            EndEvent(
                delta.request_id, delta.finish_reason, len(self._tables.pop(delta.request_id, ()))
            )
            for delta in deltas
            if delta.finish_reason is not None
        )
        event = StepEvent(
            step_id=planned.plan.step_id,
            began_s=began_s,
            planned_s=planned_s,
            collected_s=collected_s,
            ended_s=ended_s,
            times=StepTimes() if result is None else result.times,
            rows=rows,
            admitted=planned.admitted,
            preempted=planned.preempted,
            copies=planned.plan.copies,
            left=planned.left,
            ended=ended,
            trimmed=tuple(self._trim(rows)),
            line=planned.line,
            num_in_line=planned.num_in_line,
            stopped=planned.stopped,
            blocks=_states(
                self._scheduler.blocks, self._scheduler.blocks.take_journal(self._journal)
            ),
            stats=stats,
            beginning=self._beginning,
        )
        self._beginning = None
        self._on_step(event)

    def _trim(self, rows: Iterable[RowEvent]) -> Iterable[TrimEvent]:
        """Tables that a step with guesses has left shorter than it was planned."""
        for row in rows:
            table = self._tables.get(row.request_id)
            if row.num_draft_tokens and table is not None:
                num_kept = len(self._scheduler.blocks.block_ids(row.request_id))
                if num_kept < len(table):
                    del table[num_kept:]
                    yield TrimEvent(row.request_id, num_kept)

    def _look_around(self, now_s: float) -> Beginning:
        scheduler, blocks = self._scheduler, self._scheduler.blocks
        config = scheduler.config
        running = []
        for request in scheduler.requests:
            if request.state is RequestState.RUNNING:
                table = blocks.block_ids(request.request_id)
                self._tables[request.request_id] = list(table)
                running.append(Holding(request.request_id, request.num_prompt_tokens, table))
        held = {block for table in self._tables.values() for block in table}
        return Beginning(
            oldest_s=min([now_s, *(request.arrival_s for request in scheduler.requests)]),
            num_blocks=blocks.num_blocks,
            block_size=blocks.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.token_budget(),
            target_itl_ms=config.target_itl_ms,
            policy=config.policy,
            running=tuple(running),
            blocks=_states(blocks, held.union(blocks.published)),
        )


def _states(blocks: BlockManager, ids: Iterable[BlockId]) -> BlockStates:
    """These blocks by what they are now."""
    counts, published = blocks.ref_counts, blocks.published
    found: tuple[list[BlockId], ...] = ([], [], [], [])
    for block in sorted(ids):
        found[2 * (counts[block] > 0) + (block in published)].append(block)
    return BlockStates(*map(tuple, found))
