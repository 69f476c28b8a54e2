"""Requests that cannot be scheduled yet: something is being made for them in the background."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from octavo.core.request import Request, fork_id
from octavo.core.types import RequestId


@dataclass(slots=True)
class _Held:
    request: Request
    future: Future[Any]
    aborted: set[RequestId] = field(default_factory=set)

    @property
    def names(self) -> list[RequestId]:
        """Its completions."""
        request = self.request
        return [fork_id(request.request_id, index) for index in range(request.params.n)]


class Preparing:
    """Client requests in order of arrival, each with what it waits for."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[RequestId, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._held

    def add(self, request: Request, future: Future[Any]) -> None:
        """Holds a request until the future is done."""
        self._held[request.request_id] = _Held(request, future)

    def names(self) -> list[RequestId]:
        """All completions that are held."""
        return [
            name for held in self._held.values() for name in held.names if name not in held.aborted
        ]

    def requests(self) -> list[Request]:
        """Client requests that are held. To be read only."""
        return [held.request for held in self._held.values()]

    def abort(self, names: Iterable[RequestId]) -> list[RequestId]:
        """Takes completions out; returns those that were here."""
        wanted, found = set(names), []
        for held in list(self._held.values()):
            here = [name for name in held.names if name in wanted and name not in held.aborted]
            held.aborted.update(here)
            found += here
            if len(held.aborted) == held.request.params.n:
                del self._held[held.request.request_id]
        return found

    def ready(self) -> list[tuple[Request, BaseException | None, set[RequestId]]]:
        """Takes out the requests that need not wait any more: what went wrong, if anything did,
        and the completions among them that nobody wants any more."""
        done = [held for held in self._held.values() if held.future.done()]
        for held in done:
            del self._held[held.request.request_id]
        return [(held.request, held.future.exception(), held.aborted) for held in done]
