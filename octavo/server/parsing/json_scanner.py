"""Follows JSON while it is written: at every character one knows whether it still is any."""

from __future__ import annotations

import re
from enum import Enum, auto

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_BLANKS = re.compile(r"[ \t\r\n]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"t": "true", "f": "false", "n": "null"}


class State(Enum):
    """What comes next."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    DONE = auto()
    WRONG = auto()


class JsonScanner:
    """Takes in one JSON value step by step, strictly by RFC 8259."""

    __slots__ = ("_closers", "_is_key", "_token", "state")

    def __init__(self) -> None:
        self.state = State.VALUE
        self._closers: list[str] = []
        self._is_key = False
        self._token = ""
        """What is left of an escape or a literal, or has been read of a number."""

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self._closers)

    def step(self, text: str, start: int) -> int:
        """Takes in something from ``start`` on: a character, or several that make no difference.

        Returns where the next step begins. That is ``start`` again where a number has ended, and at
        the first character that is wrong.
        """
        character = text[start]
        match self.state:
            case State.STRING:
                plain = _PLAIN.match(text, start)
                return plain.end() if plain else self._in_string(character, start)
            case State.ESCAPE | State.HEX | State.NUMBER | State.LITERAL:
                return self._in_token(character, start)
        blanks = _BLANKS.match(text, start)
        if blanks:
            return blanks.end()
        return self._between(character, start)

    def _in_string(self, character: str, start: int) -> int:
        if character == "\\":
            self.state = State.ESCAPE
        elif character != '"':
            return self._fail(start)
        elif self._is_key:
            self.state = State.COLON
        else:
            self._end_value()
        return start + 1

    def _in_token(self, character: str, start: int) -> int:
        match self.state:
            case State.ESCAPE:
                if character not in '"\\/bfnrtu':
                    return self._fail(start)
                self.state = State.HEX if character == "u" else State.STRING
                self._token = "...."
            case State.HEX:
                if character not in "0123456789abcdefABCDEF":
                    return self._fail(start)
                self._token = self._token[1:]
                if not self._token:
                    self.state = State.STRING
            case State.LITERAL:
                if character != self._token[0]:
                    return self._fail(start)
                self._token = self._token[1:]
                if not self._token:
                    self._end_value()
            case _:
                if character not in "0123456789+-.eE":
                    return self._end_number(start)
                self._token += character
        return start + 1

    def _end_number(self, start: int) -> int:
        if _NUMBER.fullmatch(self._token) is None:
            return self._fail(start)
        self._end_value()
        return start

    def _between(self, character: str, start: int) -> int:
        state = self.state
        if character == '"' and state in (State.KEY, State.KEY_OR_END):
            self._is_key, self.state = True, State.STRING
        elif character == ":" and state is State.COLON:
            self.state = State.VALUE
        elif character == "," and state is State.COMMA_OR_END:
            self.state = State.KEY if self._closers[-1] == "}" else State.VALUE
        elif self._may_end(state) and character == self._closers[-1]:
            self._closers.pop()
            self._end_value()
        elif state not in (State.VALUE, State.VALUE_OR_END) or not self._begins(character):
            return self._fail(start)
        return start + 1

    def _may_end(self, state: State) -> bool:
        return state in (State.VALUE_OR_END, State.KEY_OR_END, State.COMMA_OR_END)

    def _begins(self, character: str) -> bool:
        """Whether a value begins so; enters it."""
        if character == '"':
            self._is_key, self.state = False, State.STRING
        elif character == "{":
            self._closers.append("}")
            self.state = State.KEY_OR_END
        elif character == "[":
            self._closers.append("]")
            self.state = State.VALUE_OR_END
        elif character in _LITERALS:
            self._token, self.state = _LITERALS[character][1:], State.LITERAL
        elif character == "-" or (character.isascii() and character.isdigit()):
            self._token, self.state = character, State.NUMBER
        else:
            return False
        return True

    def _end_value(self) -> None:
        self.state = State.COMMA_OR_END if self._closers else State.DONE

    def _fail(self, start: int) -> int:
        self.state = State.WRONG
        return start
