"""Drafts for the rows of a step: how long, and of what."""

from __future__ import annotations

from octavo.core.request import Request
from octavo.core.speculation import Speculation
from octavo.core.types import RequestId, TokenId
from octavo.speculate.adaptive import DraftLengths
from octavo.speculate.ngram import NgramProposer


class Speculator:
    """What the scheduler asks for guesses, and tells what became of them."""

    def __init__(self, config: Speculation) -> None:
        self._longest = config.num_speculative_tokens
        self._lengths = DraftLengths(self._longest) if config.adaptive else None
        self._proposer = NgramProposer(
            shortest=config.prompt_lookup_min, longest=config.prompt_lookup_max
        )

    def draft(
        self, request: Request, limit: int, *, num_tokens: int, num_rows: int
    ) -> tuple[TokenId, ...]:
        """Guesses for a request with one token left to compute, ``limit`` at most.

        Args:
            num_tokens, num_rows: of the step that they would lengthen.
        """
        count = self._longest
        if self._lengths is not None:
            count = self._lengths.choose(request.request_id, num_tokens, num_rows)
        count = min(count, limit)
        return self._proposer.propose(request, count) if count > 0 else ()

    def observe_draft(self, request_id: RequestId, num_accepted: int, num_drafted: int) -> None:
        """So many tokens of a request's draft were what the model generates."""
        if self._lengths is not None:
            self._lengths.observe_draft(request_id, num_accepted, num_drafted)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """A step without pieces of prompts took so long."""
        if self._lengths is not None:
            self._lengths.observe_step(num_tokens, seconds)

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._proposer.forget(request_id)
        if self._lengths is not None:
            self._lengths.forget(request_id)
