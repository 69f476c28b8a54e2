"""Counters, gauges and histograms as plain numbers: cheap to change, and readable by anyone.

They know nothing of how they are shown: `octavo.metrics.prometheus` renders them. Used from one
thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal


class Counter:
    """Only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Adds ``amount``, which is not negative."""
        if amount < 0:
            raise ValueError(f"a counter cannot go back by {-amount}")
        self.value += amount


class Gauge:
    """A number as of now; set ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """How many observations were at most each of ``bounds``, and the sum of all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, not cumulative; the last one is for what exceeds all bounds."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts ``value``, as often as it occurred."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Observations up to each bound, and all of them at the end."""
        return list(accumulate(self.counts))


Instrument = Counter | Gauge | Histogram
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Instruments that measure one thing for different values of labels."""

    name: str
    """Without prefix, and without the ``_total`` of counters."""
    documentation: str
    kind: Kind
    labels: tuple[str, ...]
    members: Mapping[tuple[str, ...], Instrument]
    """All of the class that ``kind`` names, by the values of the labels; may grow."""
