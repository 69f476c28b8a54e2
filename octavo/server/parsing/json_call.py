"""One tool call written as a JSON object that has the tool's name and its arguments."""

from __future__ import annotations

import json
from collections.abc import Collection

from octavo.server.parsing.json_scanner import JsonScanner, State

_ARGUMENTS = ("arguments", "parameters")
_KEYS = (State.KEY, State.KEY_OR_END)


class JsonCall:
    """Takes in the text of a call, from its brace on.

    Args:
        names: tools that there are; a call of any other is wrong.
        needs_arguments: an object without them is no call.
    """

    def __init__(self, names: Collection[str], *, needs_arguments: bool) -> None:
        self.raw = ""
        """What has been taken in."""
        self.name: str | None = None
        self._names = names
        self._needs_arguments = needs_arguments
        self._scanner = JsonScanner()
        self._key = ""
        self._begun_at = 0
        """Where the key or the value begins that is being read."""
        self._arguments: tuple[int, int | None] | None = None
        """Where they begin and end."""
        self._num_told = 0

    @property
    def is_done(self) -> bool:
        """Whether the object is closed, and a call."""
        return self._scanner.state is State.DONE

    @property
    def is_wrong(self) -> bool:
        """Whether this is no call, whatever follows."""
        return self._scanner.state is State.WRONG

    @property
    def is_begun(self) -> bool:
        """Whether it is known to be a call: of which tool, and that there are arguments."""
        return self.name is not None and (self._arguments is not None or self.is_done)

    def feed(self, text: str) -> int:
        """Takes in the text up to the end of the call, or to what is wrong; returns how much."""
        before = at = len(self.raw)
        text = self.raw + text
        while at < len(text) and not (self.is_done or self.is_wrong):
            at = self._step(text, at)
        self.raw = text[:at]
        return at - before

    def news(self) -> str:
        """The arguments' text, as far as it has not been told."""
        if self._arguments is None:
            return "{}" if self.is_done else ""
        begin, end = self._arguments
        text = self.raw[begin + self._num_told : end]
        self._num_told += len(text)
        return text

    def _step(self, text: str, at: int) -> int:
        scanner = self._scanner
        before, depth = scanner.state, scanner.depth
        after = scanner.step(text, at)
        if depth == 1 and scanner.state is not before:
            if before in _KEYS or before is State.VALUE:
                self._begun_at = at
                if before is State.VALUE and not self._is_possible(text[at]):
                    scanner.state = State.WRONG
            if scanner.state is State.COLON:
                self._key = json.loads(text[self._begun_at : after])
        has_moved = (before, depth) != (scanner.state, scanner.depth)
        if has_moved and scanner.depth == 1 and scanner.state is State.COMMA_OR_END:
            self._end_value(text, after)
        if scanner.state is State.DONE and (
            self.name is None or (self._arguments is None and self._needs_arguments)
        ):
            scanner.state = State.WRONG
        return at if scanner.state is State.WRONG else after

    def _is_possible(self, character: str) -> bool:
        """Whether the value of the key may begin so; notes where the arguments do."""
        if self._key == "name":
            return character == '"' and self.name is None
        if self._key in _ARGUMENTS:
            if character != "{" or self._arguments is not None:
                return False
            self._arguments = self._begun_at, None
        return True

    def _end_value(self, text: str, end: int) -> None:
        if self._key == "name":
            self.name = json.loads(text[self._begun_at : end])
            if self.name not in self._names:
                self.name = None
                self._scanner.state = State.WRONG
        elif self._key in _ARGUMENTS and self._arguments is not None:
            self._arguments = self._arguments[0], end
