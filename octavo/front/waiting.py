"""What has been sent to the engine and has not begun: how much it is, and how quickly it begins.

The front end's own books, exact at any moment: what the engine reports is a step old.
"""

from __future__ import annotations

import math
from collections import deque

from octavo.core.protocols import Clock
from octavo.core.types import RequestId

_WINDOW_S = 30.0
"""How far back the rate looks."""
_LONGEST_S = 60.0
"""No estimate is longer: what happens after a minute, nobody knows."""
_NO_RATE_S = 5.0
"""The estimate when nothing has begun lately."""


class Waiting:
    """Requests in line, in completions and in prompt tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sizes: dict[RequestId, tuple[int, int]] = {}
        self._new: set[RequestId] = set()
        """Sent since the engine's last step: it may well begin them at once."""
        self._num_old = 0
        self._num_new = 0
        self._begun: deque[tuple[float, int]] = deque(maxlen=256)
        self.num_tokens = 0
        """Prompt tokens of requests that have not begun."""

    def num_completions(self, num_free_seats: int) -> int:
        """Completions that wait for others to end, if the engine could run so many more."""
        if self._num_old:
            return self._num_old + self._num_new
        return max(0, self._num_new - num_free_seats)

    def enter(self, request_id: RequestId, num_completions: int, num_tokens: int) -> None:
        """A request has been sent."""
        self._sizes[request_id] = (num_completions, num_tokens)
        self._new.add(request_id)
        self._num_new += num_completions
        self.num_tokens += num_tokens

    def step_done(self) -> None:
        """The engine has planned a step: what it has not begun now is really in line."""
        self._num_old += self._num_new
        self._num_new = 0
        self._new.clear()

    def leave(self, request_id: RequestId, *, has_begun: bool) -> None:
        """A request has begun, or ended; ignored if that is known."""
        size = self._sizes.pop(request_id, None)
        if size is None:
            return
        num_completions, num_tokens = size
        self.num_tokens -= num_tokens
        if request_id in self._new:
            self._new.remove(request_id)
            self._num_new -= num_completions
        else:
            self._num_old -= num_completions
        if has_begun:
            self._begun.append((self._clock(), num_completions))

    def clear(self) -> None:
        """Nothing waits any more."""
        self._sizes.clear()
        self._new.clear()
        self._num_old = self._num_new = self.num_tokens = 0

    def estimate_s(self) -> float:
        """When what waits now will have begun, in seconds from now, judged by what has begun
        lately: 1 to 60, in whole seconds."""
        now = self._clock()
        while self._begun and self._begun[0][0] < now - _WINDOW_S:
            self._begun.popleft()
        num_begun = sum(num for _, num in self._begun)
        if not num_begun:
            return _NO_RATE_S
        # What began at the same moment says little about the time that it took.
        span_s = max(1.0, now - self._begun[0][0])
        seconds = (self._num_old + self._num_new) * span_s / num_begun
        return float(min(_LONGEST_S, max(1.0, math.ceil(seconds))))
