"""The seams between rooms: what the engine needs from a device, and from a clock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

from octavo.core.params import SamplingParams
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


class Preparer(Protocol):
    """Makes, beside the steps, what some requests need before they can take part in one."""

    def prepare(self, params: SamplingParams) -> Future[Any] | None:
        """Begins; None if there is nothing to wait for. Called again, it tells what has become of
        it. The future raises `RequestError` if the request cannot be served."""
