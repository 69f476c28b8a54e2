"""The engine as a child process: start it, watch it, stop it.

The child reads its configuration as one line from standard input, and then waits there for the end
of the file in a thread: when this process goes, by whatever cause, the pipe closes and the child
leaves too. It has a session of its own, so that Ctrl-C reaches the front end alone, which then
decides what happens to running requests.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence

_KILL_AFTER_S = 10.0


class EngineProcess:
    """A running child, and what became of it."""

    def __init__(self, command: Sequence[str], config_line: str) -> None:
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._child.stdin is not None
        self._child.stdin.write(config_line.encode() + b"\n")
        self._child.stdin.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def watch(self, on_exit: Callable[[str], None]) -> None:
        """Calls ``on_exit`` with the reason, from another thread, when the child has ended."""

        def wait() -> None:
            self._child.wait()
            on_exit(self.describe_exit())

        threading.Thread(target=wait, name="octavo-watch", daemon=True).start()

    def describe_exit(self) -> str:
        """How the child ended, for people."""
        code = self._child.returncode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        return f"the engine process (pid {self.pid}) {how}: see its log, and start the server again"

    def stop(self) -> None:
        """Asks the child to leave by closing its pipe and waits; kills it if it stays."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            self._child.stdin.close()
        try:
            self._child.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
