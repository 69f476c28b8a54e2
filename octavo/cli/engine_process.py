"""The engine's process: ``python -m octavo.cli.engine_process ADDRESS``, started by ``serve``.

Reads its configuration as one line of JSON from standard input. When standard input ends, the
process that started this one is gone, and this one leaves at once. Linux sees to that as well, in
case this process is stopped, or busy in code that holds the interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

import msgspec

from octavo import assemble
from octavo.cli.logs import set_up_logging
from octavo.core.config import EngineConfig
from octavo.transport.zmq_link import ZmqEngineEnd

_PR_SET_PDEATHSIG = 1


def _be_killed_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave_with_parent() -> None:
    # Not through sys.stdin: its lock, held here, would be in the way when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    """Runs the engine until it is told to leave or its parent is gone."""
    set_up_logging()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    _be_killed_with_parent()
    threading.Thread(target=_leave_with_parent, name="octavo-parent", daemon=True).start()
    assemble.run_engine(config, ZmqEngineEnd(sys.argv[1]))


if __name__ == "__main__":
    main()
