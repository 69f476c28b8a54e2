"""A request as the scheduler sees it: known tokens, some of which are computed.

There is no phase. ``num_known_tokens - num_computed_tokens`` is the work that remains, whether the
tokens come from the prompt, from the output, or must be computed again after a preemption.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from octavo.core.params import SamplingParams
from octavo.core.types import FinishReason, RequestId, TokenId


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    """In the queue: new, or preempted and to be resumed."""

    RUNNING = "running"
    """Holds blocks and takes part in steps."""

    FINISHED = "finished"
    """Ended by any reason; holds nothing."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One completion to generate. Owned and changed by the scheduler alone.

    A client's request with ``n > 1`` is ``n`` of these: see `fork_id`.
    """

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[TokenId] = frozenset()
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""

    state: RequestState = RequestState.WAITING
    output_token_ids: list[TokenId] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose K and V are in the cache."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at first admission; None until then."""
    num_preemptions: int = 0
    num_drafted_tokens: int = 0
    """Tokens that were guessed for it."""
    num_accepted_tokens: int = 0
    """Those of them that were right."""
    num_prompt_logprobs: int = 0
    """Positions of the prompt whose log-probabilities have been reported."""
    is_announced: bool = False
    """Whether the client's side has had a delta of this request."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens that have an id: the prompt and what was generated."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens still to compute."""
        return self.num_known_tokens - self.num_computed_tokens

    def note_tokens(self, now_s: float) -> None:
        """Tokens have been generated at this time."""
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s

    @property
    def generates(self) -> bool:
        """Whether any output is wanted; else it ends with its prompt."""
        return self.params.max_tokens != 0

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether something is wanted of every token of the prompt, so that each of them has to be
        computed: K and V of a cached prefix do not tell it."""
        params = self.params
        is_mean_open = params.pooling == "mean" and not self.output_token_ids
        return params.prompt_logprobs is not None or is_mean_open

    def token_ids(self) -> list[TokenId]:
        """All known tokens, prompt first."""
        return [*self.prompt_token_ids, *self.output_token_ids]


def fork_id(request_id: RequestId, index: int) -> RequestId:
    """Id of the completion with this index among the ``n`` of one client's request.

    Index 0 keeps the client's id: it computes the prompt, and the others fork from it.
    """
    return request_id if index == 0 else f"{request_id}#{index}"
