"""What the model wrote as the messages and deltas of chat completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from octavo.core.types import FinishReason
from octavo.server.openai.responses import (
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    ToolCallDelta,
)
from octavo.server.parsing.answer import Answer, parse_answer
from octavo.server.parsing.events import (
    AnswerParser,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
)
from octavo.server.parsing.plan import AnswerPlan


def ended(reason: FinishReason | None, *, has_calls: bool) -> ChatFinishReason | None:
    """How an answer ended, in a word: one that has calls waits for their results."""
    return "tool_calls" if reason == "stop" and has_calls else reason


def message_of(answer: Answer, *, shows_reasoning: bool) -> ChatMessage:
    """A whole answer."""
    calls = [
        ChatToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in answer.tool_calls
    ]
    thought = answer.reasoning if shows_reasoning and answer.reasoning else UNSET
    return ChatMessage(
        "assistant",
        answer.content or (None if calls else ""),
        reasoning_content=thought,
        reasoning=thought,
        tool_calls=calls or UNSET,
    )


def read_answer(plan: AnswerPlan, text: str) -> Answer:
    """What is in the whole text of an answer."""
    return parse_answer(plan.make_parser(False), text)


class AnswerStream:
    """Turns the text of one streamed answer into deltas."""

    def __init__(self, plan: AnswerPlan, *, shows_reasoning: bool) -> None:
        self._parser: AnswerParser = plan.make_parser(True)
        self._shows_reasoning = shows_reasoning
        self._has_calls = False

    def deltas(self, text: str, reason: FinishReason | None) -> list[ChatDelta]:
        """What this piece adds, of one kind each; perhaps nothing."""
        events: Sequence[Event] = self._parser.feed(text)
        if reason is not None:
            events = [*events, *self._parser.finish()]
        found = [delta for event in events if (delta := self._delta(event)) is not None]
        return found

    def ended(self, reason: FinishReason | None) -> ChatFinishReason | None:
        """How the answer has ended."""
        return ended(reason, has_calls=self._has_calls)

    def _delta(self, event: Event) -> ChatDelta | None:
        match event:
            case Text(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                if not self._shows_reasoning:
                    return None
                return ChatDelta(reasoning_content=text, reasoning=text)
            case ToolCallStart(index, call_id, name):
                self._has_calls = True
                call = ToolCallDelta(index, FunctionCall(name, ""), call_id, "function")
            case ToolCallArguments(index, fragment):
                call = ToolCallDelta(index, FunctionCall(arguments=fragment))
        return ChatDelta(tool_calls=[call])
