"""A step as a timeline tells of it. Times are in seconds of the engine's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.plan import StepPlan, StepTimes
from octavo.core.types import FinishReason, RequestId
from octavo.metrics.stats import StepStats


class ArrivalEvent(NamedTuple):
    """A completion as it was when its first row was planned."""

    request_id: RequestId
    arrival_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache or from a sibling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step that was planned, and what became of it."""

    began_s: float
    planned_s: float
    collected_s: float
    ended_s: float
    plan: StepPlan
    times: StepTimes
    arrivals: tuple[ArrivalEvent, ...]
    """Completions that have their first row in this step."""
    preempted: tuple[RequestId, ...]
    """Those that gave back their blocks while the step was planned."""
    num_sampled: tuple[int, ...]
    """Tokens that became known, for each row of the plan."""
    ended: tuple[tuple[RequestId, FinishReason], ...]
    stats: StepStats
