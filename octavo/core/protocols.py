"""The seams between rooms: what the engine needs from a device, and from a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from octavo.core.plan import StepPlan, StepResult

Clock: TypeAlias = Callable[[], float]
"""Seconds since some fixed point, never going back."""


class Executor(Protocol):
    """What the engine needs from a device.

    Plans are submitted in order, and collected in the same order. A fake in tests, the simulator's
    cost model and the real runner all stand behind these two methods.
    """

    def submit(self, plan: StepPlan) -> None:
        """Starts a step; may return before it has run."""

    def collect(self) -> StepResult:
        """Waits for the oldest submitted step and returns its result.

        Raises:
            ExecutorError: the step as a whole failed.
        """
