"""Answers that are nothing but text."""

from __future__ import annotations

from octavo.server.parsing.events import Event, Text


class PlainParser:
    """Implements `octavo.server.parsing.events.AnswerParser`: all of it is the visible answer."""

    def feed(self, text: str) -> list[Event]:
        """See `AnswerParser.feed`."""
        return [Text(text)] if text else []

    def finish(self) -> list[Event]:
        """See `AnswerParser.finish`."""
        return []
