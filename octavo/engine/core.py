"""One step after the other: plan → execute → commit, and what it cost.

Knows the device by protocol only, and nothing of processes, text or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.errors import ExecutorError, InvalidParameter, RequestError
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta, StepPlan, StepResult, StepTimes
from octavo.core.protocols import Clock, Executor, Preparer
from octavo.core.request import Request, fork_id
from octavo.core.types import RequestId
from octavo.engine.preparing import Preparing
from octavo.engine.recorder import OnStep, Recorder
from octavo.engine.snapshot import Asked, take_snapshot
from octavo.engine.watch import Watch
from octavo.metrics.snapshot import EngineChanges, EngineSnapshot
from octavo.metrics.stats import StepStats
from octavo.scheduler.counters import StepCounters
from octavo.scheduler.scheduler import Scheduler

_PREPARING_S = 0.005
"""How long to wait for messages when there is nothing to do but to see what has been prepared."""


class Engine:
    """Runs requests to their end, a step at a time. Not thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        clock: Clock,
        check_invariants: bool,
        preparer: Preparer | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._check_invariants = check_invariants
        self._preparer = preparer
        self._preparing = Preparing()
        self._last_plan: StepPlan | None = None
        self._watch: Watch | None = None
        self._recorder: Recorder | None = None

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._scheduler.has_work or bool(self._preparing)

    @property
    def wait_s(self) -> float | None:
        """How long the loop may wait for messages before the next step; None for as long as it
        takes."""
        if self._scheduler.has_work:
            return 0
        return _PREPARING_S if self._preparing else None

    def prepare(self, params: SamplingParams) -> None:
        """Makes what requests with these parameters need, and waits for it.

        Raises:
            RequestError: they cannot be served.
        """
        future = None if self._preparer is None else self._preparer.prepare(params)
        if future is not None:
            future.result()

    def add(self, request: Request) -> None:
        """Takes in a request. If something must be made for it first, it waits beside the
        scheduler; should that go wrong, `step` tells.

        Raises:
            RequestError: it could never be served.
        """
        if request.request_id in self._preparing:
            raise InvalidParameter(
                f"request id {request.request_id!r} is in use: choose another", param="request_id"
            )
        future = None if self._preparer is None else self._preparer.prepare(request.params)
        if future is None:
            self._scheduler.add(request)
        else:
            self._preparing.add(request, future)

    def abort(self, request_ids: Iterable[RequestId]) -> list[RequestDelta]:
        """Ends these completions at once; unknown and finished ids are ignored."""
        names = list(request_ids)
        held = self._preparing.abort(names) if self._preparing else []
        deltas = [RequestDelta(request_id=name, finish_reason="abort") for name in held]
        return deltas + self._scheduler.abort(names)

    def abort_all(self) -> list[RequestDelta]:
        """Ends every unfinished completion at once."""
        return self.abort([*self._scheduler.request_ids, *self._preparing.names()])

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        self._scheduler.blocks.reset_prefix_cache()

    def step(self) -> tuple[list[RequestDelta], StepStats]:
        """Plans and runs one step; returns what it changed, and its numbers.

        A step that fails on the device ends the requests in it with an error, and no others.
        """
        scheduler = self._scheduler
        refused = self._take_in_prepared() if self._preparing else []
        began = self._clock()
        plan = scheduler.schedule()
        planned = self._clock()
        deltas = refused + scheduler.end_outgrown()
        times, collected, ended = StepTimes(), planned, planned
        result: StepResult | None = None
        recorder = self._recorder
        seen = None if plan is None or recorder is None else recorder.look(plan)
        if plan is not None:
            self._last_plan = plan
            try:
                self._executor.submit(plan)
                result = self._executor.collect()
            except ExecutorError as error:
                deltas += scheduler.fail(plan, str(error))
                collected = ended = self._clock()
            else:
                collected = self._clock()
                deltas += scheduler.commit(plan, result)
                ended = self._clock()
                times = result.times
        if self._check_invariants:
            scheduler.check_invariants()
        stats = self._stats(plan, planned - began, ended - collected, times)
        if recorder is not None and seen is not None:
            recorder.tell(seen, result, (began, planned, collected, ended), deltas, stats)
        return deltas, stats

    def _take_in_prepared(self) -> list[RequestDelta]:
        """Hands over to the scheduler whoever need not wait any more; returns who is refused."""
        deltas = []
        for request, fault, aborted in self._preparing.ready():
            try:
                if fault is not None:
                    raise fault
                self._scheduler.add(request)
            except RequestError as error:
                refused = refusal(request.request_id, request.params.n, error)
                deltas += [delta for delta in refused if delta.request_id not in aborted]
            else:
                self._scheduler.abort(aborted)
        return deltas

    def snapshot(self, max_requests: int, block_range: range | None) -> EngineSnapshot:
        """Every request and, if wanted, every block of a range, between steps."""
        return take_snapshot(
            self._scheduler,
            self._preparing.requests(),
            self._last_plan,
            now_s=self._clock(),
            asked=Asked(max_requests, block_range),
        )

    def watch(self, max_requests: int, num_text_tokens: int, *, afresh: bool) -> EngineChanges:
        """Everything at first, or ``afresh``; then what has changed since the last call."""
        if self._watch is None or afresh:
            self._watch = Watch(self._scheduler)
        return self._watch.changes(
            self._preparing.requests(),
            self._last_plan,
            now_s=self._clock(),
            asked=Asked(max_requests, num_text_tokens=num_text_tokens),
        )

    def unwatch(self) -> None:
        """Nobody watches any more: nothing is noted for it."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def record(self, on_step: OnStep) -> None:
        """Tells ``on_step`` of every step from now on, in place of whoever was told before."""
        self.stop_recording()
        self._recorder = Recorder(self._scheduler, on_step, now_s=self._clock())

    def stop_recording(self) -> None:
        """Nobody is told any more, which costs nothing."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def stats(self) -> StepStats:
        """The state now, without a step."""
        return self._stats(None, 0.0, 0.0, StepTimes())

    def _stats(
        self, plan: StepPlan | None, schedule_s: float, commit_s: float, times: StepTimes
    ) -> StepStats:
        scheduler = self._scheduler
        counters, scheduler.counters = scheduler.counters, StepCounters()
        return StepStats(
            step_id=-1 if self._last_plan is None else self._last_plan.step_id,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting + len(self._preparing.names()),
            cache=scheduler.blocks.stats(),
            num_rows=len(plan.rows) if plan else 0,
            num_tokens=plan.num_tokens if plan else 0,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_preemptions=counters.num_preemptions,
            num_prefix_queries=counters.num_prefix_queries,
            num_prefix_hits=counters.num_prefix_hits,
            drafted=tuple(counters.drafted),
            draft_lengths=tuple(counters.draft_lengths),
            accepted=tuple(counters.accepted),
            num_resume_queries=counters.num_resume_queries,
            num_resume_hits=counters.num_resume_hits,
            num_forked_tokens=counters.num_forked_tokens,
            schedule_s=schedule_s,
            commit_s=commit_s,
            executor=times,
        )


def refusal(request_id: RequestId, n: int, error: RequestError) -> list[RequestDelta]:
    """What the client's side must hear of a request that is not taken in."""
    return [
        RequestDelta(
            request_id=fork_id(request_id, index),
            finish_reason="error",
            error=str(error),
            error_kind=type(error).__name__,
            error_param=error.param,
        )
        for index in range(n)
    ]
