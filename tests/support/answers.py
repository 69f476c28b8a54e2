"""Answers of models, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.server.parsing.answer import Answer, parse_answer
from octavo.server.parsing.events import AnswerParser
from octavo.server.parsing.tools import Tool

TOOLS: tuple[Tool, ...] = (
    Tool(
        name="weather",
        description="The weather of a city.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "spots": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["city"],
        },
    ),
    Tool(name="now"),
)


def content_of(answer: Answer) -> tuple[str, str, list[tuple[str, str]]]:
    """Text, reasoning and calls, without the ids that are made up."""
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.content, answer.reasoning, calls


def read(parser: AnswerParser, pieces: Sequence[str]) -> Any:
    """What is in an answer that comes in pieces."""
    answer = Answer()
    for piece in pieces:
        answer.add(parser.feed(piece))
    answer.add(parser.finish())
    return content_of(answer)


def read_whole(parser: AnswerParser, text: str) -> Any:
    return content_of(parse_answer(parser, text))
