"""Answers that begin with what the model thinks, between ``<think>`` and ``</think>``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.core.types import TokenId
from octavo.server.parsing.events import AnswerParser, Event, Reasoning
from octavo.server.parsing.writer import num_held

BEGIN, END = "<think>", "</think>"


class ReasoningMarks(NamedTuple):
    """Tokens around reasoning."""

    begin: TokenId
    end: TokenId
    is_open: bool
    """Whether the answer begins inside."""


class ReasoningTokens:
    """Counts the tokens of one answer that are reasoning, its marks among them."""

    def __init__(self, marks: ReasoningMarks) -> None:
        self.count = 0
        self._marks = marks
        self._is_inside = marks.is_open

    def add(self, token_ids: Iterable[TokenId]) -> None:
        """More tokens of the answer."""
        for token_id in token_ids:
            self._is_inside |= token_id == self._marks.begin
            self.count += self._is_inside
            self._is_inside &= token_id != self._marks.end


class ReasoningParser:
    """See `AnswerParser`. Blanks around the marks belong to neither side.

    Args:
        answer: takes what comes after the reasoning.
        is_open: the answer begins inside the reasoning: the prompt has opened it, or the model does
            so without saying.
    """

    def __init__(self, answer: AnswerParser, *, is_open: bool) -> None:
        self._answer = answer
        self._is_open = is_open
        self._begun = False
        """Whether it is known that there is reasoning, or none."""
        self._has_text = False
        self._is_after = False
        self._rest = ""

    def feed(self, text: str) -> list[Event]:
        """Events that this piece completes."""
        self._rest += text
        if not self._begun and not self._begin():
            return []
        events: list[Event] = []
        if self._is_open:
            events += self._think()
        if self._is_open:
            return events
        return events + self._pass_on()

    def finish(self) -> list[Event]:
        """The rest, when the answer has ended."""
        events: list[Event] = []
        if self._is_open and self._begun:
            events += self._say(self._rest.rstrip())
        elif self._is_open:
            events += self._say(self._rest.strip())
        else:
            events += self._answer.feed(self._rest)
        self._rest = ""
        return events + self._answer.finish()

    def _begin(self) -> bool:
        """Whether enough has come to tell what the answer begins with."""
        behind = self._rest.lstrip()
        if len(behind) < len(BEGIN) and BEGIN.startswith(behind):
            return False
        if behind.startswith(BEGIN):
            self._rest = behind[len(BEGIN) :]
            self._is_open = True
        self._begun = True
        return True

    def _think(self) -> list[Event]:
        before, mark, behind = self._rest.partition(END)
        if mark:
            self._is_open, self._is_after, self._rest = False, True, behind
            return self._say(before.rstrip())
        cut = len(self._rest) - num_held(self._rest, (END,))
        cut = len(self._rest[:cut].rstrip())
        before, self._rest = self._rest[:cut], self._rest[cut:]
        return self._say(before)

    def _say(self, text: str) -> list[Event]:
        if not self._has_text:
            text = text.lstrip()
        if not text:
            return []
        self._has_text = True
        return [Reasoning(text)]

    def _pass_on(self) -> list[Event]:
        text, self._rest = self._rest, ""
        if self._is_after:
            text = text.lstrip()
            self._is_after = not text
        return self._answer.feed(text) if text else []
