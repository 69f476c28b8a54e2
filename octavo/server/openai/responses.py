"""Response bodies, as msgspec encodes them: whole answers and the chunks of streams."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from octavo.core.types import FinishReason, TokenId

ChatFinishReason: TypeAlias = FinishReason | Literal["tool_calls"]

_LOWEST_LOGPROB = -9999.0


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold: what cannot happen becomes very unlikely."""
    return max(_LOWEST_LOGPROB, logprob)


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """What generated tokens were."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET
    """Known if the model marks its reasoning with tokens of their own."""


class CompletionLogprobs(msgspec.Struct):
    """The older shape: parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, omit_defaults=True):
    """A completion, or a piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: TokenId | str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    prompt_logprobs: list[Any] | None = None


class EmbeddingUsage(msgspec.Struct):
    """What embeddings cost, in tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct):
    """A text as a vector: numbers, or base64 of float32 in little-endian order."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(msgspec.Struct):
    """Answer of ``/v1/embeddings``."""

    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class ScoreItem(msgspec.Struct):
    """How much alike a pair of texts is."""

    index: int
    score: float
    object: str = "score"


class ScoreList(msgspec.Struct):
    """Answer of ``/v1/score``."""

    id: str
    created: int
    model: str
    data: list[ScoreItem]
    usage: EmbeddingUsage
    object: str = "list"


class TopLogprob(msgspec.Struct):
    """An alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The newer shape: an object a token."""

    content: list[TokenLogprob]


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """Which function to call, with arguments as JSON text; or more of that text."""

    name: str | None = None
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ChatToolCall(msgspec.Struct):
    """A call in an answer."""

    id: str
    function: FunctionCall
    type: str = "function"


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """A piece of a call: the first one has everything but the arguments."""

    index: int
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    """An answer."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The same by its newer name."""
    tool_calls: list[ChatToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, omit_defaults=True):
    """An answer and how it ended."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: TokenId | str | None = None
    token_ids: list[TokenId] | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """A piece of an answer."""

    role: str | None = None
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, omit_defaults=True):
    """A piece of an answer, with its place."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: TokenId | str | None = None
    token_ids: list[TokenId] | None = None


class Envelope(msgspec.Struct, omit_defaults=True):
    """What surrounds the choices of an answer or of a chunk.

    ``usage`` is None in the chunks of a stream whose last one has it.
    """

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[TokenId] | None = None
