"""Answers whose tool calls are written with a tag for each argument: Qwen3-Coder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from octavo.server.parsing.events import Event
from octavo.server.parsing.values import is_text, json_value
from octavo.server.parsing.writer import EventWriter, num_held

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_HEAD = re.compile(rf"(?:{BEGIN}\s*)?{FUNCTION}([^<>\n]+)>")
_HEAD_SO_FAR = re.compile(rf"{BEGIN}\s*")
_PARAMETER = re.compile(rf"{PARAMETER}([^<>\n]+)>")
_NAME_SO_FAR = re.compile(r"[^<>\n]*")


class _Place(Enum):
    TEXT = auto()
    HEAD = auto()
    CALL = auto()
    VALUE = auto()
    AFTER = auto()


class XmlCallParser:
    """See `AnswerParser` and, for what is no call, `JsonCallParser`.

    Args:
        schemas: JSON schemas of the arguments by the name of the tool: what a value is depends on
            its type.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], *, is_eager: bool) -> None:
        self._schemas = schemas
        self._is_eager = is_eager
        self._place = _Place.TEXT
        self._rest = ""
        self._raw = ""
        """The call that is being read, so far."""
        self._name = ""
        self._is_told = False
        self._untold = ""
        """Arguments that nobody has been told yet."""
        self._num_arguments = 0
        self._value: tuple[str, bool] = "", False
        """Which argument is being read, and whether its first line break has been left out."""
        self._writer = EventWriter()

    def feed(self, text: str) -> list[Event]:
        """Events that this piece completes."""
        self._rest += text
        while self._step(is_end=False):
            pass
        if self._is_eager:
            self._tell()
        return self._writer.take()

    def finish(self) -> list[Event]:
        """The rest, when the answer has ended."""
        while self._step(is_end=True):
            pass
        self._tell()
        self._writer.end()
        return self._writer.take()

    def _step(self, *, is_end: bool) -> bool:
        match self._place:
            case _Place.TEXT:
                return self._text(is_end)
            case _Place.HEAD:
                return self._head(is_end)
            case _Place.CALL:
                return self._in_call(is_end)
            case _Place.VALUE:
                return self._in_value(is_end)
            case _Place.AFTER:
                return self._after(is_end)

    def _text(self, is_end: bool) -> bool:
        found = [at for mark in (BEGIN, FUNCTION) if (at := self._rest.find(mark)) >= 0]
        if found:
            cut, self._place = min(found), _Place.HEAD
        else:
            cut = len(self._rest) - (0 if is_end else num_held(self._rest, (BEGIN, FUNCTION)))
        self._writer.text(self._rest[:cut])
        self._rest = self._rest[cut:]
        return bool(found)

    def _head(self, is_end: bool) -> bool:
        head = _HEAD.match(self._rest)
        if head is None:
            return False if self._may_be_head() and not is_end else self._no_call()
        if head[1] not in self._schemas:
            return self._no_call()
        self._name, self._num_arguments = head[1], 0
        self._is_told, self._untold = False, ""
        self._take(head.end())
        self._place = _Place.CALL
        return True

    def _may_be_head(self) -> bool:
        begin = _HEAD_SO_FAR.match(self._rest)
        behind = self._rest[begin.end() :] if begin else self._rest
        if FUNCTION.startswith(behind):
            return True
        name = behind.removeprefix(FUNCTION)
        return name != behind and _NAME_SO_FAR.fullmatch(name) is not None

    def _in_call(self, is_end: bool) -> bool:
        self._take(len(self._rest) - len(self._rest.lstrip()))
        rest = self._rest
        parameter = _PARAMETER.match(rest)
        if parameter is not None:
            self._value = parameter[1], False
            key = json.dumps(parameter[1], ensure_ascii=False)
            self._untold += f"{', ' if self._num_arguments else '{'}{key}: "
            self._num_arguments += 1
            if is_text(self._property()):
                self._untold += '"'
            self._take(parameter.end())
            self._place = _Place.VALUE
            return True
        if rest.startswith((FUNCTION_END, END)):
            self._untold += "}" if self._num_arguments else "{}"
            if rest.startswith(FUNCTION_END):
                self._take(len(FUNCTION_END))
            return self._end_call(_Place.AFTER)
        name = rest.removeprefix(PARAMETER)
        is_open = any(mark.startswith(rest) for mark in (PARAMETER, FUNCTION_END, END)) or (
            name != rest and _NAME_SO_FAR.fullmatch(name) is not None
        )
        if is_open:
            return False
        return self._end_call(_Place.TEXT) if self._is_eager else self._no_call()

    def _in_value(self, is_end: bool) -> bool:
        name, is_begun = self._value
        if not is_begun:
            if not self._rest:
                return False
            self._value = name, True
            self._take(int(self._rest[0] == "\n"))
        schema = self._property()
        value, mark, _ = self._rest.partition(PARAMETER_END)
        if is_text(schema):
            if mark:
                cut = len(value)
            else:
                cut = len(self._rest) - num_held(self._rest, ("\n" + PARAMETER_END, PARAMETER_END))
            text = value.removesuffix("\n") if mark else self._rest[:cut]
            self._untold += json.dumps(text, ensure_ascii=False)[1:-1] + ('"' if mark else "")
            self._take(cut)
        elif mark:
            self._untold += json_value(schema, value.strip())
            self._take(len(value))
        if mark:
            self._take(len(PARAMETER_END))
            self._place = _Place.CALL
        return bool(mark)

    def _property(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The schema of the argument that is being read, and the whole that it is part of."""
        whole = self._schemas[self._name]
        properties = whole.get("properties")
        found = properties.get(self._value[0]) if isinstance(properties, Mapping) else None
        return (found if isinstance(found, Mapping) else {}), whole

    def _after(self, is_end: bool) -> bool:
        self._rest = self._rest.lstrip()
        if not is_end and END.startswith(self._rest) and self._rest != END:
            return False
        self._rest = self._rest.removeprefix(END)
        self._place = _Place.TEXT
        return True

    def _take(self, num_characters: int) -> None:
        """This much belongs to the call."""
        if not self._is_eager:
            self._raw += self._rest[:num_characters]
        self._rest = self._rest[num_characters:]

    def _tell(self) -> None:
        if self._place in (_Place.CALL, _Place.VALUE) and (self._untold or not self._is_told):
            self._writer.call(self._name, self._untold, is_more=self._is_told)
            self._is_told, self._untold = True, ""

    def _end_call(self, place: _Place) -> bool:
        self._tell()
        self._place, self._raw = place, ""
        return True

    def _no_call(self) -> bool:
        """What looked like a call is text; there may be a call in the rest of it."""
        self._rest, self._raw = self._raw + self._rest, ""
        cut = len(BEGIN) if self._rest.startswith(BEGIN) else min(len(FUNCTION), len(self._rest))
        self._writer.text(self._rest[:cut])
        self._rest = self._rest[cut:]
        self._place = _Place.TEXT
        return True
