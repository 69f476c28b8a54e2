"""The engine as a child process: start it, watch it, stop it.

The child reads its configuration as one line from standard input, and then waits there for the end
of the file in a thread: when this process goes, by whatever cause, the pipe closes and the child
leaves too. It has a session of its own, so that Ctrl-C reaches the front end alone, which then
decides what happens to running requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

from octavo.core.errors import EngineDead

GRACE_S = 5.0
"""How long a child may take to leave before the next, less friendly means."""


class EngineProcess:
    """A running child, and what became of it.

    Raises:
        EngineDead: the command cannot be run.
    """

    def __init__(self, command: Sequence[str], config_line: str) -> None:
        try:
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise EngineDead(f"cannot start the engine process {command[0]}: {error}") from error
        assert self._child.stdin is not None
        self._stdin = self._child.stdin
        self._killed_because: str | None = None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: whoever watches learns
                self._stdin.write(config_line.encode() + b"\n")
                self._stdin.flush()
        except BaseException:
            self._child.kill()
            self._child.wait()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def watch(self, on_exit: Callable[[str], None]) -> None:
        """Calls ``on_exit`` with the reason, in the running event loop, once the child has ended
        by whatever cause, `stop` included. A loop that is closed by then hears nothing."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            self._child.wait()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(on_exit, self.describe_exit())

        threading.Thread(target=wait, name="octavo-watch", daemon=True).start()

    def describe_exit(self) -> str:
        """How the child ended, for people."""
        code = self._child.returncode
        assert code is not None, "the child still runs"
        how = self._killed_because or _how(code)
        return f"the engine process (pid {self.pid}) {how}"

    def kill(self, because: str) -> None:
        """Ends the child at once, whatever it is doing; `describe_exit` will give this reason."""
        self._killed_because = f"was killed: {because}"
        self._child.kill()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Asks the child to leave by closing its pipe, then by SIGTERM, and kills it in the end;
        waits up to ``grace_s`` after each. May be called twice."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        for insist in (self._child.terminate, self._child.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace_s)
                return
            insist()
        self._child.wait()


def _how(code: int) -> str:
    if code == 0:
        return "has left"
    if code > 0:
        return f"ended with status {code}: see its log"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    hint = "perhaps memory ran out; " if -code == signal.SIGKILL else ""
    return f"was killed by {name}: {hint}see its log"
