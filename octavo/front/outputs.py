"""What a client gets: pieces of text and tokens while a request runs, and the whole at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

from octavo.core.errors import EngineError
from octavo.core.types import FinishReason, RequestId, TokenId

Value = TypeVar("Value")


class DecodedLogprob(NamedTuple):
    """One token's log-probability with its text. ``text`` is the token's own bytes decoded with
    replacement characters where they are no whole UTF-8; ``raw`` are the bytes themselves."""

    token_id: TokenId
    text: str
    raw: bytes
    logprob: float
    rank: int
    top: tuple[DecodedLogprob, ...] = ()
    """The best alternatives, best first (their own ``top`` is empty)."""


@dataclass(slots=True, kw_only=True)
class CompletionDelta:
    """What one step added to one completion. Texts joined are the completion's text.

    Not to be changed once made. (Not frozen either: with so many fields that would take longer
    than decoding the text.)
    """

    index: int
    """Which of the ``n`` completions."""
    text: str = ""
    """New text; may be empty while bytes of a character, or of a possible stop string, are
    missing."""
    token_ids: tuple[TokenId, ...] = ()
    logprobs: tuple[DecodedLogprob, ...] = ()
    prompt_logprobs: tuple[DecodedLogprob | None, ...] | None = None
    """All at once, with the delta that ends the prompt; the first entry is None."""
    embedding: bytes | None = None
    """With the first completion's delta that ends the prompt: see `RequestOutput.embedding`."""
    num_cached_tokens: int | None = None
    """With a completion's first delta."""
    queue_s: float | None = None
    """With a completion's first delta: seconds from its arrival to its first step."""
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None
    error: str | None = None


def joined(deltas: Sequence[CompletionDelta]) -> list[CompletionDelta]:
    """The same news in one delta a completion, in the order in which completions first occur."""
    by_index: dict[int, list[CompletionDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [
        CompletionDelta(
            index=index,
            text="".join([part.text for part in parts]),
            token_ids=tuple(chain.from_iterable(part.token_ids for part in parts)),
            logprobs=tuple(chain.from_iterable(part.logprobs for part in parts)),
            prompt_logprobs=_first(part.prompt_logprobs for part in parts),
            embedding=_first(part.embedding for part in parts),
            num_cached_tokens=_first(part.num_cached_tokens for part in parts),
            queue_s=_first(part.queue_s for part in parts),
            finish_reason=parts[-1].finish_reason,
            stop_reason=parts[-1].stop_reason,
            error=parts[-1].error,
        )
        for index, parts in by_index.items()
    ]


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One completion, whole."""

    index: int
    text: str = ""
    token_ids: list[TokenId] = field(default_factory=list)
    logprobs: list[DecodedLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Seconds, as seen by the front end, from when the request was handed over."""

    queue_s: float
    """Until its first step began."""
    first_token_s: float
    total_s: float
    """Until the last completion ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """What became of a client's request, however it ended. Seconds are those of the front end, and
    count from when the request was handed over."""

    request_id: RequestId
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    """Of all completions."""
    queue_s: float | None
    """Until its first step; None if it had none."""
    first_token_s: float | None
    last_token_s: float | None
    total_s: float
    """Until its end."""
    closed_s: float
    """Until nobody waited for it any more: now."""
    finish_reasons: tuple[FinishReason, ...]
    """Of the completions that ended, in order of their index."""
    error: EngineError | None
    """What ended it as a whole."""


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request's completions, in the order of their index, and what they cost."""

    request_id: RequestId
    prompt: str | None
    prompt_token_ids: tuple[TokenId, ...]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[DecodedLogprob | None] | None = None
    embedding: bytes | None = None
    """The prompt's pooled hidden states, if wanted: float32, of any length as a vector. See
    `octavo.front.embedding`."""
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
