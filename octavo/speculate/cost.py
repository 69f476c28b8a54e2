"""What a step costs, learned from the steps that were run."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

_NEWEST = 0.03
"""Weight of a new step's time in the mean of steps of about its size."""
_DRIFT = 0.1
"""Weight of a new step's time in how fast the machine is just now."""
_SETTLED = 4
"""Steps of about one size after which they tell whether the machine has changed."""
_LONGEST = 3.0
"""A step that took this many times longer than others of its size counts no more than this."""
_PER_DOUBLING = 2
"""How finely sizes are told apart."""


class Drift:
    """How much slower than at first the machine is just now: other processes come and go, and sizes
    that have not been run since must not look quick, or slow, because of it."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


class StepCost:
    """Seconds by size, a broken line through the means of steps of about the same size.

    No formula: a step's time is flat while it is bound by memory, then grows with its size, with
    knees where blocks of a kernel begin.

    Args:
        drift: shared with the costs of other work on the same machine.
    """

    __slots__ = ("_drift", "_means", "_points")

    def __init__(self, drift: Drift | None = None) -> None:
        self._drift = drift or Drift()
        self._means: dict[int, tuple[float, float, int]] = {}
        """Mean size, mean seconds, and how many steps; by rounded logarithm of the size."""
        self._points: list[tuple[float, float]] = []
        """The means by size; the seconds of a larger one are never less."""

    def observe(self, size: float, seconds: float) -> None:
        """A step of this size, 1 at least, took so long."""
        key = round(_PER_DOUBLING * math.log2(size))
        mean_size, mean, count = self._means.get(key, (size, seconds, 0))
        if count:
            seconds = min(seconds, _LONGEST * mean * self._drift.factor)
        if count >= _SETTLED and mean > 0 < seconds:
            self._drift.factor *= (seconds / (mean * self._drift.factor)) ** _DRIFT
        seconds /= self._drift.factor
        if not count:
            mean = seconds
        weight = max(_NEWEST, 1 / (count + 1))
        self._means[key] = (
            mean_size + weight * (size - mean_size),
            mean + weight * (seconds - mean),
            count + 1,
        )
        by_size = sorted(entry[:2] for entry in self._means.values())
        highest = accumulate((seconds for _, seconds in by_size), max)
        self._points = list(zip((at for at, _ in by_size), highest, strict=True))

    @property
    def is_known(self) -> bool:
        """Whether any step has been seen."""
        return bool(self._points)

    def seconds(self, size: float) -> float:
        """Of a step of this size.

        What is not known is taken to be cheap, so that it is tried: a step smaller than all seen
        takes its share of the smallest, beyond the largest the line goes on, and before any was
        seen they cost nothing.
        """
        return self._line(size) * self._drift.factor

    def _line(self, size: float) -> float:
        points = self._points
        if not points:
            return 0.0
        at = bisect_left(points, (size, 0.0))
        if at == 0:
            return points[0][1] * size / points[0][0]
        if len(points) == 1:
            return points[0][1]
        (low, low_s), (high, high_s) = points[at - 1 : at + 1] if at < len(points) else points[-2:]
        return low_s + (high_s - low_s) * (size - low) / (high - low)
