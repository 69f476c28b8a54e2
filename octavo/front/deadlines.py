"""Calls when something is due: one timer for any number of deadlines, and none while idle."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from octavo.core.protocols import Clock

Name = TypeVar("Name", bound=Hashable)

_SLACK = 64
"""Entries of deadlines that no longer count, beyond as many as do, before they are dropped."""


class Deadlines(Generic[Name]):
    """Names, each with a time at which ``on_due`` is called with it. Used from one event loop."""

    def __init__(self, on_due: Callable[[Name], None], clock: Clock) -> None:
        self._on_due = on_due
        self._clock = clock
        self._at: dict[Name, float] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, name: Name, at_s: float) -> None:
        """``name`` is due at this time of the clock; it has no other deadline."""
        self._at[name] = at_s
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, name))
        if self._timer is None or at_s < self._timer_at:
            self._arm()

    def discard(self, name: Name) -> None:
        """``name`` is not due any more, if it was."""
        if self._at.pop(name, None) is None:
            return
        if not self._at:
            self.clear()
        elif len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Nothing is due any more."""
        self._at.clear()
        self._heap.clear()
        self._disarm()

    def _arm(self) -> None:
        self._disarm()
        self._timer_at = self._heap[0][0]
        delay_s = max(0.0, self._timer_at - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            at_s, _, name = heapq.heappop(self._heap)
            if self._at.get(name) == at_s:
                del self._at[name]
                self._on_due(name)
        if not self._at:
            self.clear()
        elif self._timer is None:  # else `on_due` has armed it
            self._arm()
