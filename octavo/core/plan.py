"""The words that scheduler and runner share: what to run in a step, and what came out.

A plan is complete and immutable: the executor needs to know nothing else, and there is no phase
flag. Prefill, a chunk of one, decode, recompute after preemption and verification of drafts are
rows that differ in ``num_new_tokens`` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.params import SamplingParams
from octavo.core.types import BlockId, FinishReason, RequestId, TokenId


class ScheduledRequest(NamedTuple):
    """One row of a step: compute ``num_new_tokens`` tokens from position ``start`` on."""

    request_id: RequestId
    start: int
    """Tokens already in the KV cache before this step."""
    num_new_tokens: int
    """1 for plain decode, 1 + guesses when verifying, more for a piece of a prompt."""
    new_block_ids: tuple[BlockId, ...] = ()
    """Blocks to append to the runner's block table of this request."""
    num_draft_tokens: int = 0
    """Guesses of what follows the known tokens, which are verified in this step."""
    draft_token_ids: tuple[TokenId, ...] = ()
    """These guesses; empty if the executor makes them, with its draft model."""
    wants_sample: bool = True
    """False while known tokens remain uncomputed after this step, and for a request that generates
    nothing."""

    @property
    def drafts_by_model(self) -> bool:
        """Whether the executor has to make the guesses."""
        return self.num_draft_tokens > len(self.draft_token_ids)


class BlockCopy(NamedTuple):
    """Copy-on-write: copy block ``source`` to ``target`` in all layers before the step runs.

    ``target`` takes the place at ``table_index`` in the block table of ``request_id``.
    """

    request_id: RequestId
    table_index: int
    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What the runner must know of a request that it sees for the first time, or again after a
    preemption."""

    request_id: RequestId
    token_ids: tuple[TokenId, ...]
    """All known tokens: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    """Always set; the request's own seed or one drawn for it."""
    eos_token_ids: frozenset[TokenId] = frozenset()
    """Tokens that end the output; masked while ``min_tokens`` is not reached."""
    block_ids: tuple[BlockId, ...] = ()
    """Block table so far: the cached prefix. The row's ``new_block_ids`` come after these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that the executor may know about one step."""

    step_id: int
    rows: tuple[ScheduledRequest, ...]
    admitted: tuple[NewRequest, ...] = ()
    """Requests that the runner sees for the first time or again; each has a row."""
    released: tuple[RequestId, ...] = ()
    """Finished or preempted since the last plan: drop them before admitting anyone."""
    copies: tuple[BlockCopy, ...] = ()
    """Copies to make before anything is written, in order."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(row.num_new_tokens for row in self.rows)


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, from the model's raw logits (natural logarithm)."""

    token_id: TokenId
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[TokenId, float], ...] = ()
    """The best alternatives as (token id, logprob), best first."""


class RowResult(NamedTuple):
    """What a step made of one row."""

    request_id: RequestId
    token_ids: tuple[TokenId, ...] = ()
    """Sampled tokens: none for an unfinished prompt, one for a decode, up to 1 + drafts."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token of ``token_ids``, if the request wants them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """For the prompt tokens *after* each position that this step computed, if wanted."""
    error: str | None = None
    """Set if this row alone failed; its neighbours are not touched."""
    is_complete: bool = False
    """Whether nothing can follow these tokens: the output has the form that was asked for."""
    embedding: bytes | None = None
    """With the end of the prompt, if wanted: its pooled hidden states, float32 in the machine's
    byte order, of any length as a vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds that the executor spent on the parts of a step."""

    prepare_s: float = 0.0
    """Host: plan to arrays, block tables, sampling parameters."""
    draft_s: float = 0.0
    """Device: the draft model, to make guesses and to keep up with the prompts."""
    forward_s: float = 0.0
    """Device: the model, embeddings to logits."""
    sample_s: float = 0.0
    """Logits to tokens."""

    @property
    def total_s(self) -> float:
        """All parts."""
        return self.prepare_s + self.draft_s + self.forward_s + self.sample_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came out of a step, a row for each row of the plan and in its order."""

    step_id: int
    rows: tuple[RowResult, ...]
    """A row with drafts has one token more than there were right guesses."""
    times: StepTimes = field(default_factory=StepTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDelta:
    """What a step changed for one request, as the client's side learns it."""

    request_id: RequestId
    new_token_ids: tuple[TokenId, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: bytes | None = None
    """See `RowResult.embedding`."""
    num_cached_tokens: int | None = None
    """With the first delta of a request: prompt tokens that came from the prefix cache."""
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None
    """The token that ended the output, if it is not an end-of-sequence token of the model."""
    keeps_last_token: bool = False
    """Whether the last token of an output that has stopped belongs to its text: it did not stop the
    output, but nothing could follow it."""
    error: str | None = None
    error_kind: str | None = None
    """Name of the `RequestError` class if the request was refused at the door."""
    error_param: str | None = None
    """The parameter at fault, if it was refused for one."""
    queue_s: float | None = None
    """With the first delta: seconds from arrival to the first step."""
