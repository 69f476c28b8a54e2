"""A whole answer, put together from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.server.parsing.events import (
    AnswerParser,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
)


@dataclass(slots=True)
class ToolCall:
    """A call; ``arguments`` is JSON text, or the beginning of one if the answer was cut."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """What the model has said, thought and called."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        """Takes in more of it."""
        for event in events:
            match event:
                case Text(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case ToolCallStart(_, call_id, name):
                    self.tool_calls.append(ToolCall(call_id, name))
                case ToolCallArguments(index, fragment):
                    self.tool_calls[index].arguments += fragment


def parse_answer(parser: AnswerParser, text: str) -> Answer:
    """A whole answer from its whole text."""
    answer = Answer()
    answer.add(parser.feed(text))
    answer.add(parser.finish())
    return answer
