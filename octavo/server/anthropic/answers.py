"""Answers of the Messages API, as msgspec encodes them: whole ones, and the events of streams."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from pydantic_core import from_json

from octavo.server import dialect
from octavo.server.openai.common import Job
from octavo.server.openai.responses import Usage
from octavo.server.parsing.events import Event, Text, ToolCallArguments, ToolCallStart
from octavo.server.sse import named_event

StopReason: TypeAlias = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "model_context_window_exceeded",
]


class MessagesUsage(msgspec.Struct):
    """What a request cost, in tokens; those read from the cache are no input tokens."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> MessagesUsage:
        """The same in the words of this API."""
        cached = usage.prompt_tokens_details.cached_tokens
        return cls(usage.prompt_tokens - cached, usage.completion_tokens, cached)


class TextBlock(msgspec.Struct, tag="text"):
    """A piece of the visible answer."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """What the model thought; there is nothing to sign it for."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A tool that the model calls."""

    id: str
    name: str
    input: dict[str, Any]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicMessage(msgspec.Struct, tag="message"):
    """An answer."""

    id: str
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    role: str = "assistant"


class TokensCount(msgspec.Struct):
    """Answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class TextDelta(msgspec.Struct, tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class InputJsonDelta(msgspec.Struct, tag="input_json_delta"):
    """More of the JSON text of a tool's input."""

    partial_json: str


Delta: TypeAlias = TextDelta | ThinkingDelta | InputJsonDelta


class MessageStart(msgspec.Struct, tag="message_start"):
    """The first event: the message without content."""

    message: AnthropicMessage


class BlockStart(msgspec.Struct, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class Ping(msgspec.Struct, tag="ping"):
    """Nothing new."""


class BlockDelta(msgspec.Struct, tag="content_block_delta"):
    """More of the open block."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    """A block is complete."""

    index: int


class Stopped(msgspec.Struct):
    """Why the message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    """What is known at the end of the message."""

    delta: Stopped
    usage: MessagesUsage


class MessageStop(msgspec.Struct, tag="message_stop"):
    """The last event."""


StreamEvent: TypeAlias = (
    MessageStart | BlockStart | Ping | BlockDelta | BlockStop | MessageDelta | MessageStop
)


def framed(events: list[StreamEvent]) -> bytes:
    """Events as they go over the wire."""
    return b"".join([named_event(str(event.__struct_config__.tag), event) for event in events])


class Answer:
    """A message as it grows, and the events that tell of it.

    Args:
        is_cut_by_context: the limit of the output is the end of the context, not what was asked.
        shows_thinking: what the model thinks is a part of the message.
    """

    def __init__(self, job: Job, *, is_cut_by_context: bool, shows_thinking: bool) -> None:
        self.message = AnthropicMessage(job.id, job.model, [], None, None, MessagesUsage(0, 0, 0))
        self._is_cut_by_context = is_cut_by_context
        self._shows_thinking = shows_thinking
        self._has_begun = False
        self._arguments: list[str] = []
        """Of the tool call that is open."""

    def feed(self, piece: dialect.Piece) -> list[StreamEvent]:
        """The events of a piece of the answer, the first and last of the stream included."""
        message, found = self.message, list[StreamEvent]()
        message.usage = MessagesUsage.of(piece.usage)
        if not self._has_begun:
            self._has_begun = True
            opening = AnthropicMessage(message.id, message.model, [], None, None, message.usage)
            found.append(MessageStart(opening))
        for event in piece.events:
            found += self._feed(event)
        if piece.ending is not None:
            found += self._closed()
            message.stop_reason, message.stop_sequence = self._stopped(piece.ending)
            stopped = Stopped(message.stop_reason, message.stop_sequence)
            found += [MessageDelta(stopped, message.usage), MessageStop()]
        return found

    def _feed(self, event: Event) -> list[StreamEvent]:
        if isinstance(event, ToolCallStart):
            return self._opened(ToolUseBlock(event.id, event.name, {}))
        if isinstance(event, ToolCallArguments):
            self._arguments.append(event.fragment)
            return [self._delta(InputJsonDelta(event.fragment))]
        found: list[StreamEvent] = []
        last = self.message.content[-1] if self.message.content else None
        if isinstance(event, Text):
            if not isinstance(last, TextBlock):
                last = TextBlock("")
                found += self._opened(last)
            last.text += event.text
            return [*found, self._delta(TextDelta(event.text))]
        if not self._shows_thinking:
            return []
        if not isinstance(last, ThinkingBlock):
            last = ThinkingBlock("")
            found += self._opened(last)
        last.thinking += event.text
        return [*found, self._delta(ThinkingDelta(event.text))]

    def _opened(self, block: Block) -> list[StreamEvent]:
        closed, content = self._closed(), self.message.content
        content.append(block)
        start = BlockStart(len(content) - 1, msgspec.structs.replace(block))
        # Where Anthropic has it: proof that the message is under way.
        return [*closed, start, *([Ping()] if len(content) == 1 else [])]

    def _delta(self, delta: Delta) -> BlockDelta:
        return BlockDelta(len(self.message.content) - 1, delta)

    def _closed(self) -> list[StreamEvent]:
        content = self.message.content
        if not content:
            return []
        if isinstance(last := content[-1], ToolUseBlock):
            last.input = _input("".join(self._arguments))
            self._arguments.clear()
        return [BlockStop(len(content) - 1)]

    def _stopped(self, ending: dialect.Ending) -> tuple[StopReason, str | None]:
        if ending.finish_reason == "length":
            exceeded = self._is_cut_by_context
            return ("model_context_window_exceeded" if exceeded else "max_tokens"), None
        if ending.finish_reason == "abort":  # may be sent back to be continued
            return "pause_turn", None
        if isinstance(ending.stop_reason, str):
            return "stop_sequence", ending.stop_reason
        calls = any(isinstance(block, ToolUseBlock) for block in self.message.content)
        return ("tool_use" if calls else "end_turn"), None


def _input(arguments: str) -> dict[str, Any]:
    """The value of a tool's arguments; of what was cut short, what there is of it."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
