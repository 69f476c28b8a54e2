"""Drafts for the rows of a step: how long, and of what."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from octavo.core.plan import StepPlan, StepTimes
from octavo.core.request import Request
from octavo.core.speculation import Speculation
from octavo.core.types import RequestId, TokenId
from octavo.speculate.adaptive import DraftLengths
from octavo.speculate.ngram import NgramProposer
from octavo.speculate.suffix import SuffixProposer


class Proposer(Protocol):
    """A way of guessing that needs no model."""

    def propose(self, request: Request, count: int) -> tuple[TokenId, ...]:
        """At most ``count`` tokens that may follow all known ones."""

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""


class Draft(NamedTuple):
    """Guesses of what follows a request's known tokens."""

    num_tokens: int = 0
    token_ids: tuple[TokenId, ...] = ()
    """What they are; empty if the executor makes them."""


class Speculator:
    """What the scheduler asks for guesses, and tells what became of them."""

    def __init__(self, config: Speculation) -> None:
        self._longest = config.num_speculative_tokens
        self._lengths = (
            DraftLengths(self._longest, by_model=config.by_model) if config.adaptive else None
        )
        self._proposer = _make_proposer(config)

    def begin_step(self, request_ids: Collection[RequestId]) -> None:
        """These requests have one token to compute in the next step, and may draft."""
        if self._lengths is not None:
            self._lengths.begin_step(request_ids)

    def draft(self, request: Request, limit: int) -> Draft:
        """Guesses for one of them, ``limit`` at most."""
        count = self._longest
        if self._lengths is not None:
            count = self._lengths.choose(request.request_id)
        count = min(count, limit)
        if count <= 0:
            return Draft()
        if self._proposer is None:
            return Draft(count)
        token_ids = self._proposer.propose(request, count)
        if self._lengths is not None:
            self._lengths.observe_guess(is_made=bool(token_ids))
        return Draft(len(token_ids), token_ids)

    def observe_draft(self, request_id: RequestId, num_accepted: int, num_drafted: int) -> None:
        """So many tokens of a request's draft were what the model generates."""
        if self._lengths is not None:
            self._lengths.observe_draft(request_id, num_accepted, num_drafted)

    def observe_step(self, plan: StepPlan, times: StepTimes) -> None:
        """A step took so long."""
        if self._lengths is None or not plan.rows:
            return
        self._lengths.observe_step(plan.num_tokens, times.total_s - times.draft_s)
        drafted = [row.num_draft_tokens for row in plan.rows if row.drafts_by_model]
        if drafted:
            self._lengths.observe_drafting(len(drafted), max(drafted), times.draft_s)

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        if self._proposer is not None:
            self._proposer.forget(request_id)
        if self._lengths is not None:
            self._lengths.forget(request_id)


def _make_proposer(config: Speculation) -> Proposer | None:
    if config.by_model:
        return None
    if config.method == "suffix":
        return SuffixProposer(
            max_depth=config.suffix_decoding_max_tree_depth,
            max_requests=config.suffix_decoding_max_cached_requests,
            factor=config.suffix_decoding_max_spec_factor,
            min_probability=config.suffix_decoding_min_token_prob,
        )
    return NgramProposer(shortest=config.prompt_lookup_min, longest=config.prompt_lookup_max)
