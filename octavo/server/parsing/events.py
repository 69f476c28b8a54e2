"""What an answer is made of, piece by piece, whichever format the model writes it in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """More of the visible answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model calls a tool; calls of one answer are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    fragment: str


Event: TypeAlias = Text | Reasoning | ToolCallStart | ToolCallArguments


class AnswerParser(Protocol):
    """Takes the text of one answer in pieces; cutting it differently changes no event's content."""

    def feed(self, text: str) -> list[Event]:
        """Events that this piece completes; what may still become markup is held back."""

    def finish(self) -> list[Event]:
        """The rest, when the answer has ended."""
