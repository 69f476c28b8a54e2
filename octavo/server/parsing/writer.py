"""What the parsers of all formats write their events with."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from octavo.server.parsing.events import Event, Text, ToolCallArguments, ToolCallStart


class EventWriter:
    """Collects events, numbers calls, and leaves out the blanks around calls."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._blanks = ""
        """Not told yet: they count only if text follows."""
        self._num_calls = 0
        self._has_text = False
        self._is_after_call = False

    def text(self, text: str) -> None:
        """More text."""
        text = self._blanks + text
        shown = text.rstrip()
        self._blanks = text[len(shown) :]
        if not shown:
            return
        if self._num_calls and not self._has_text:
            shown = shown.lstrip()
        self._has_text, self._is_after_call = True, False
        self._events.append(Text(shown))

    def call(self, name: str, arguments: str, *, is_more: bool) -> None:
        """A call, or more of the last one's arguments."""
        if not is_more:
            self._is_after_call = True
            call_id = f"call_{uuid.uuid4().hex[:24]}"
            self._events.append(ToolCallStart(self._num_calls, call_id, name))
            self._num_calls += 1
        if arguments:
            self._events.append(ToolCallArguments(self._num_calls - 1, arguments))

    def end(self) -> None:
        """The answer has ended."""
        if self._blanks and not self._is_after_call:
            self._events.append(Text(self._blanks))
        self._blanks = ""

    def take(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events


def num_held(text: str, marks: Iterable[str]) -> int:
    """Length of the longest end of ``text`` that may become one of the marks."""
    return max(
        (
            length
            for mark in marks
            for length in range(1, min(len(mark), len(text) + 1))
            if text.endswith(mark[:length])
        ),
        default=0,
    )
