"""Completions of one prompt, ``n > 1``: the first computes it, the others wait and then fork."""

from __future__ import annotations

from dataclasses import replace

from octavo.core.params import MAX_SEED
from octavo.core.request import Request, fork_id
from octavo.core.types import RequestId


class Siblings:
    """Which completions wait for which other one's prompt, and whom they may fork from."""

    __slots__ = ("_first_of", "_held")

    def __init__(self) -> None:
        self._held: dict[RequestId, list[Request]] = {}
        self._first_of: dict[RequestId, RequestId] = {}

    def make(self, request: Request) -> list[Request]:
        """The other ``n - 1`` completions of a client's request; they are held from now on."""
        others = [_sibling(request, index) for index in range(1, request.params.n)]
        if others:
            self._held[request.request_id] = list(others)
            self._first_of.update((other.request_id, request.request_id) for other in others)
        return others

    def let_go(self, request_id: RequestId) -> list[Request]:
        """Those that have waited for this one's prompt: it is computed, or will not be soon."""
        return self._held.pop(request_id, [])

    def first_of(self, request_id: RequestId) -> RequestId | None:
        """The completion that this one may fork from."""
        return self._first_of.get(request_id)

    def held_ids(self) -> list[RequestId]:
        """All that are still held."""
        return [request.request_id for held in self._held.values() for request in held]

    def forget(self, request: Request) -> bool:
        """A completion has ended; True if it was still held."""
        first = self._first_of.pop(request.request_id, None)
        held = self._held.get(first, []) if first is not None else []
        if request not in held:
            return False
        held.remove(request)
        return True


def _sibling(request: Request, index: int) -> Request:
    """Another completion of the same prompt, with a seed of its own."""
    return Request(
        request_id=fork_id(request.request_id, index),
        prompt_token_ids=request.prompt_token_ids,
        # What is said of the prompt is the same for all: the first reports it.
        params=replace(request.params, prompt_logprobs=None, pooling=None),
        seed=(request.seed + index) & MAX_SEED,
        eos_token_ids=request.eos_token_ids,
        priority=request.priority,
        arrival_s=request.arrival_s,
        cache_salt=request.cache_salt,
    )
