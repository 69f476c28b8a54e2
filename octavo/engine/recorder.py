"""Tells of a step what a timeline wants to know; runs only while somebody records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.core.plan import RequestDelta, StepPlan, StepResult, StepTimes
from octavo.core.request import RequestState
from octavo.core.types import RequestId
from octavo.metrics.stats import StepStats
from octavo.scheduler.scheduler import Scheduler
from octavo.timeline.events import ArrivalEvent, StepEvent

OnStep = Callable[[StepEvent], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a step before its result changes the requests."""

    arrivals: tuple[ArrivalEvent, ...]
    preempted: tuple[RequestId, ...]


def look(scheduler: Scheduler, plan: StepPlan) -> Planned:
    """Call it between `Scheduler.schedule` and `Scheduler.commit`."""
    requests = {request.request_id: request for request in scheduler.requests}
    arrivals = []
    for new in plan.admitted:
        request = requests[new.request_id]
        if not request.num_preemptions:
            found = request.num_cached_tokens or 0
            arrivals.append(
                ArrivalEvent(
                    request.request_id, request.arrival_s, request.num_prompt_tokens, found
                )
            )
    left = (requests[name] for name in plan.released if name in requests)
    preempted = tuple(
        request.request_id
        for request in left
        if request.num_preemptions and request.state is RequestState.WAITING
    )
    return Planned(tuple(arrivals), preempted)


def step_event(
    planned: Planned,
    plan: StepPlan,
    result: StepResult | None,
    instants_s: tuple[float, float, float, float],
    deltas: Sequence[RequestDelta],
    stats: StepStats,
) -> StepEvent:
    """The whole step; ``result`` is None if it failed, ``instants_s`` are its beginning, when it
    was planned, when its result was there, and its end."""
    began_s, planned_s, collected_s, ended_s = instants_s
    sampled = (
        (0,) * len(plan.rows) if result is None else tuple(len(r.token_ids) for r in result.rows)
    )
    return StepEvent(
        began_s=began_s,
        planned_s=planned_s,
        collected_s=collected_s,
        ended_s=ended_s,
        plan=plan,
        times=StepTimes() if result is None else result.times,
        arrivals=planned.arrivals,
        preempted=planned.preempted,
        num_sampled=sampled,
        ended=tuple(
            (delta.request_id, delta.finish_reason)
            for delta in deltas
            if delta.finish_reason is not None
        ),
        stats=stats,
    )
