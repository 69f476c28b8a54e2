"""Answers of the Responses API, as msgspec encodes them: whole ones, and the events of streams."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from octavo.server.openai.responses import TokenLogprob, Usage

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class InputTokensDetails(msgspec.Struct):
    """Where input tokens came from."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """What output tokens were for."""

    reasoning_tokens: int


class ResponsesUsage(msgspec.Struct):
    """What a request cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponsesUsage:
        """The same in the words of this API."""
        details = usage.completion_tokens_details
        return cls(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(details.reasoning_tokens if details else 0),
            usage.total_tokens,
        )


class OutputText(msgspec.Struct, tag="output_text"):
    """The text of a message."""

    text: str
    logprobs: list[TokenLogprob]
    annotations: tuple[()] = ()


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    """The text of a reasoning item."""

    text: str


Part: TypeAlias = OutputText | ReasoningText


class MessageItem(msgspec.Struct, tag="message"):
    """What the model says."""

    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    """What the model thinks before it answers."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: tuple[()] = ()
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, tag="function_call"):
    """A function that the model calls."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


Item: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem


class IncompleteDetails(msgspec.Struct):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct):
    """Why there is no answer."""

    code: str
    message: str


class Response(msgspec.Struct, kw_only=True):
    """An answer, and what it was asked with."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None


class ResponsesEvent(msgspec.Struct, kw_only=True):
    """An event of a stream; they are numbered from 0."""

    type: str
    sequence_number: int
    response: Response | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    item: Item | msgspec.UnsetType = msgspec.UNSET
    part: Part | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET
