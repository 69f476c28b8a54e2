"""The terminal: taken over while a block runs, and given back as it was, whatever happens."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05
"""How long the rest of an escape sequence may take; after that it was the Escape key."""
_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*|O)?$")
_NAMES = {
    "A": "up",
    "B": "down",
    "H": "home",
    "F": "end",
    "5~": "page up",
    "6~": "page down",
    "1~": "home",
    "4~": "end",
    "7~": "home",
    "8~": "end",
}


class Keys:
    """Makes names of keys from what a terminal sends, however it is cut."""

    def __init__(self) -> None:
        self._rest = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether more must come before the last key is known."""
        return bool(self._rest)

    def feed(self, text: str) -> list[str]:
        """Keys that are complete: characters as they are, others by name; unknown ones are left
        out."""
        text = self._rest + text
        cut = _UNFINISHED.search(text)
        self._rest = text[cut.start() :] if cut else ""
        found = _SEQUENCE.findall(text[: cut.start()] if cut else text)
        names = (_NAMES.get(s[2:]) if len(s) > 1 else s for s in found)
        return [name for name in names if name is not None]

    def give_up(self) -> list[str]:
        """What an unfinished sequence was, if nothing more comes."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest else []


class Terminal:
    """Alternate screen, no cursor, keys one by one. Signals that end the process, and Ctrl-Z, find
    it restored. Lines are written only where they have changed."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._keys = Keys()
        self._shown: list[str] = []
        self._size = (0, 0)
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self._saved = termios.tcgetattr(self._in)
        try:
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, _leave_by_signal)
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(self._out)
        return max(1, found.columns), max(1, found.lines)

    def wake(self) -> None:
        """Makes `wait` return; from any thread."""
        with suppress(BlockingIOError):  # full: it will return anyway
            os.write(self._wake_write, b".")

    def wait(self, seconds: float) -> list[str]:
        """Keys that were pressed; none if it was woken, or the time is over.

        Raises:
            EOFError: the terminal is gone.
        """
        ready, _, _ = select.select([self._in, self._wake_read], [], [], max(0.0, seconds))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._in not in ready:
            return []
        keys = self._read()
        while self._keys.is_unfinished:
            more, _, _ = select.select([self._in], [], [], _ESCAPE_S)
            keys += self._read() if more else self._keys.give_up()
        return keys

    def show(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Makes the screen show these lines, each at most as wide as it is."""
        out = []
        if size != self._size:
            self._size, self._shown = size, []
            out.append("\x1b[0m\x1b[2J")
        for k, line in enumerate(lines):
            if k >= len(self._shown) or self._shown[k] != line:
                out.append(f"\x1b[{k + 1};1H\x1b[2K{line}")
        self._shown = list(lines)
        if out:
            self._write("".join(out).encode(sys.stdout.encoding or "ascii", "replace"))

    def _read(self) -> list[str]:
        raw = os.read(self._in, 1024)
        if not raw:
            raise EOFError("the terminal is gone")
        return self._keys.feed(raw.decode("utf-8", "replace"))

    def _write(self, raw: bytes) -> None:
        while raw:
            raw = raw[os.write(self._out, raw) :]

    def _take(self) -> None:
        tty.setcbreak(self._in)
        self._size = (0, 0)
        self._write(_ENTER)

    def _give_back(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._write(_LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(self._in, termios.TCSANOW, self._saved)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.wake()

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self.wake()


class Pace:
    """How often frames may be drawn."""

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._last = 0.0

    def wait_s(self) -> float:
        """Until the next one; 0 for now."""
        return max(0.0, self._last + self._shortest_s - time.monotonic())

    def drew(self) -> None:
        """One has been drawn."""
        self._last = time.monotonic()


def _leave_by_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
