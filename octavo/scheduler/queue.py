"""The waiting line: requests in the order of their rank.

A preempted request keeps its rank and so returns to where it stood: before all that came later.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from octavo.core.request import Request
from octavo.core.types import RequestId
from octavo.scheduler.policy import Rank


class WaitingLine:
    """A sorted list of waiting requests."""

    __slots__ = ("_ranks", "_requests")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """In order of rank. The line may be changed while a copy is walked: see `list`."""
        return iter(self._requests)

    def insert(self, request: Request, rank: Rank) -> None:
        """Puts a request where its rank belongs."""
        place = bisect.bisect(self._ranks, rank)
        self._ranks.insert(place, rank)
        self._requests.insert(place, request)

    def remove(self, request_id: RequestId, rank: Rank) -> None:
        """Takes out a request that stands in line with this rank."""
        place = bisect.bisect_left(self._ranks, rank)
        found = self._requests[place].request_id
        assert found == request_id, f"{found} stands where {request_id} should"
        del self._ranks[place]
        del self._requests[place]

    def check(self) -> list[RequestId]:
        """Verifies the order; returns who stands in line.

        Raises:
            AssertionError: what is wrong.
        """
        if len(self._ranks) != len(self._requests):
            raise AssertionError(
                f"{len(self._requests)} requests wait with {len(self._ranks)} ranks"
            )
        if self._ranks != sorted(set(self._ranks)):
            raise AssertionError("the waiting line is not in the order of its ranks")
        return [request.request_id for request in self._requests]
