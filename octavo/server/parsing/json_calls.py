"""Answers whose tool calls are JSON objects between or after marks: Hermes, Llama 3."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from octavo.server.parsing.events import Event
from octavo.server.parsing.json_call import JsonCall
from octavo.server.parsing.writer import EventWriter, num_held


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonMarkup:
    """How a family of models marks its calls."""

    begin: str
    end: str = ""
    """After a call; some models leave it out."""
    separator: str = ""
    """Between calls where there are no marks."""
    may_be_bare: bool = False
    """An object at the beginning of the answer is a call without a mark."""


HERMES = JsonMarkup(begin="<tool_call>", end="</tool_call>")
LLAMA3 = JsonMarkup(begin="<|python_tag|>", separator=";", may_be_bare=True)


class _Place(Enum):
    START = auto()
    TEXT = auto()
    CALL = auto()
    AFTER = auto()


class JsonCallParser:
    """See `AnswerParser`. What turns out to be no call is text, marks and all.

    Args:
        names: tools that may be called.
        is_eager: a call is told while its arguments are still written. They may turn out to be
            wrong then; what is wrong of them, and all behind it, comes as text.
    """

    def __init__(self, markup: JsonMarkup, names: Collection[str], *, is_eager: bool) -> None:
        self._markup = markup
        self._names = names
        self._is_eager = is_eager
        self._place = _Place.START
        self._rest = ""
        self._mark = ""
        """What came before the call that is being read."""
        self._call: JsonCall | None = None
        self._told: JsonCall | None = None
        """The call that has been told last."""
        self._separator = re.compile(rf"{re.escape(markup.separator)}\s*")
        self._writer = EventWriter()

    def feed(self, text: str) -> list[Event]:
        """Events that this piece completes."""
        self._rest += text
        while self._step(is_end=False):
            pass
        return self._writer.take()

    def finish(self) -> list[Event]:
        """The rest, when the answer has ended."""
        while self._step(is_end=True):
            pass
        self._writer.end()
        return self._writer.take()

    def _step(self, *, is_end: bool) -> bool:
        """Goes as far as the place is the same; whether there is more to do."""
        match self._place:
            case _Place.START:
                return self._start()
            case _Place.TEXT:
                return self._text(is_end)
            case _Place.CALL:
                return self._in_call(is_end)
            case _Place.AFTER:
                return self._after(is_end)

    def _start(self) -> bool:
        self._skip_blanks()
        if not self._rest:
            return False
        if self._markup.may_be_bare and self._rest[0] == "{":
            self._open("")
        else:
            self._place = _Place.TEXT
        return True

    def _text(self, is_end: bool) -> bool:
        before, mark, behind = self._rest.partition(self._markup.begin)
        if mark:
            self._writer.text(before)
            self._rest = behind
            self._open(mark)
            return True
        num_kept = 0 if is_end else num_held(self._rest, (self._markup.begin,))
        cut = len(self._rest) - num_kept
        self._writer.text(self._rest[:cut])
        self._rest = self._rest[cut:]
        return False

    def _open(self, mark: str) -> None:
        self._mark = mark
        self._call = None
        self._place = _Place.CALL

    def _in_call(self, is_end: bool) -> bool:
        if self._call is None:
            behind = self._rest.lstrip()
            self._mark += self._rest[: len(self._rest) - len(behind)]
            self._rest = behind
            if not behind and not is_end:
                return False
            if not behind.startswith("{"):
                return self._no_call("")
            self._call = JsonCall(self._names, needs_arguments=self._markup.may_be_bare)
        call = self._call
        self._rest = self._rest[call.feed(self._rest) :]
        is_known = call.is_begun and (call.is_done or (not call.is_wrong and is_end))
        if is_known or (self._is_eager and call.is_begun):
            self._writer.call(call.name or "", call.news(), is_more=call is self._told)
            self._told = call
        if call.is_done or (call.is_wrong and call is self._told):
            self._place = _Place.AFTER if call.is_done else _Place.TEXT
            return True
        if call.is_wrong or (is_end and call is not self._told):
            return self._no_call(call.raw)
        return False

    def _no_call(self, raw: str) -> bool:
        """What looked like a call is text; there may be a call in the rest of it."""
        if self._mark:
            self._writer.text(self._mark)
            self._rest = raw + self._rest
        else:
            self._writer.text(raw)
        self._place = _Place.TEXT
        return True

    def _after(self, is_end: bool) -> bool:
        self._skip_blanks()
        markup, rest = self._markup, self._rest
        separator = self._separator.match(rest)
        behind = rest[separator.end() :] if separator else rest
        if not is_end and any(
            mark.startswith(behind) and mark != behind for mark in (markup.begin, markup.end)
        ):
            return False
        self._place = _Place.TEXT
        if markup.end and rest.startswith(markup.end):
            self._rest = rest[len(markup.end) :]
        elif markup.may_be_bare and behind.startswith("{"):
            self._rest = behind
            self._open("")
        elif behind.startswith(markup.begin):
            self._rest = behind
        return True

    def _skip_blanks(self) -> None:
        behind = self._rest.lstrip()
        self._writer.text(self._rest[: len(self._rest) - len(behind)])
        self._rest = behind
