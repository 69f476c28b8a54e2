"""One step after the other: plan → execute → commit, and what it cost.

Knows the device by protocol only, and nothing of processes, text or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.errors import ExecutorError
from octavo.core.plan import RequestDelta, StepPlan, StepTimes
from octavo.core.protocols import Clock, Executor
from octavo.core.request import Request
from octavo.core.types import RequestId
from octavo.metrics.stats import StepStats
from octavo.scheduler.counters import StepCounters
from octavo.scheduler.scheduler import Scheduler


class Engine:
    """Runs requests to their end, a step at a time. Not thread-safe."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, clock: Clock, check_invariants: bool
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._check_invariants = check_invariants
        self._last_step_id = -1

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Takes in a request.

        Raises:
            RequestError: it could never be served.
        """
        self._scheduler.add(request)

    def abort(self, request_ids: Iterable[RequestId]) -> list[RequestDelta]:
        """Ends these completions at once; unknown and finished ids are ignored."""
        return self._scheduler.abort(request_ids)

    def abort_all(self) -> list[RequestDelta]:
        """Ends every unfinished completion at once."""
        return self._scheduler.abort(self._scheduler.request_ids)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        self._scheduler.blocks.reset_prefix_cache()

    def step(self) -> tuple[list[RequestDelta], StepStats]:
        """Plans and runs one step; returns what it changed, and its numbers.

        A step that fails on the device ends the requests in it with an error, and no others.
        """
        scheduler = self._scheduler
        began = self._clock()
        plan = scheduler.schedule()
        planned = self._clock()
        deltas = scheduler.end_outgrown()
        times, commit_s = StepTimes(), 0.0
        if plan is not None:
            self._last_step_id = plan.step_id
            try:
                self._executor.submit(plan)
                result = self._executor.collect()
            except ExecutorError as error:
                deltas += scheduler.fail(plan, str(error))
            else:
                collected = self._clock()
                deltas += scheduler.commit(plan, result)
                commit_s = self._clock() - collected
                times = result.times
        if self._check_invariants:
            scheduler.check_invariants()
        return deltas, self._stats(plan, planned - began, commit_s, times)

    def stats(self) -> StepStats:
        """The state now, without a step."""
        return self._stats(None, 0.0, 0.0, StepTimes())

    def _stats(
        self, plan: StepPlan | None, schedule_s: float, commit_s: float, times: StepTimes
    ) -> StepStats:
        scheduler = self._scheduler
        counters, scheduler.counters = scheduler.counters, StepCounters()
        return StepStats(
            step_id=self._last_step_id,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            cache=scheduler.blocks.stats(),
            num_rows=len(plan.rows) if plan else 0,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_preemptions=counters.num_preemptions,
            num_prefix_queries=counters.num_prefix_queries,
            num_prefix_hits=counters.num_prefix_hits,
            schedule_s=schedule_s,
            commit_s=commit_s,
            executor=times,
        )
