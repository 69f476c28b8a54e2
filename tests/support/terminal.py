"""A program at a pseudo-terminal, and what its user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyte

_PROGRAM = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from octavo.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
"""The command with the pseudo-terminal as its controlling one, so that Ctrl-C and resizes work."""
WIDTH, HEIGHT = 80, 24


class Session:
    """``octavo`` with these arguments, and its screen."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self.raw = b""
        """All that it has written."""
        self._stream = pyte.ByteStream(self.screen)
        self._master, self._terminal = pty.openpty()
        self._set_size(WIDTH, HEIGHT)
        self.before = termios.tcgetattr(self._terminal)
        known = {"TERM": "xterm-256color", "PYTHONUTF8": "1", "COLORTERM": "truecolor"}
        left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "OCTAVO_API_KEY")
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            start_new_session=True,
            env={**inherited, **known, **environment},
        )

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(height, width)
        self._set_size(width, height)

    def until(self, condition: Callable[[str], Any], within_s: float = 40.0) -> Any:
        """Watches until the screen is so; returns what the condition returned."""
        deadline = time.monotonic() + within_s
        while not (found := condition(self.text)):
            assert time.monotonic() < deadline, f"not seen within {within_s} s:\n{self.text}"
            assert self.process.poll() is None, f"it has ended:\n{self.text}"
            self.watch(0.2)
        return found

    def watch(self, seconds: float) -> bytes:
        """Takes in what is written within this time, at most one piece; returns it."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return b""
        piece = os.read(self._master, 1 << 16)
        self.raw += piece
        self._stream.feed(piece)
        return piece

    def end(self, within_s: float = 30.0) -> int:
        """Waits for its end; returns the exit status."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still there:\n{self.text}"
            self.watch(0.05)
        while self.watch(0.05):
            pass
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal is as it was before."""
        tail = self.raw[self.raw.rindex(b"\x1b[?1049") :]
        return (
            tail.startswith(b"\x1b[?1049l")
            and self.raw.rindex(b"\x1b[?25h") > self.raw.rindex(b"\x1b[?25l")
            and termios.tcgetattr(self._terminal) == self.before
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
        os.close(self._terminal)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


@contextmanager
def at_a_terminal(*arguments: str, **environment: str) -> Iterator[Session]:
    session = Session(arguments, environment)
    try:
        yield session
    finally:
        session.close()
