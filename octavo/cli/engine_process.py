"""The engine's process: ``python -m octavo.cli.engine_process ADDRESS``, started by ``serve``.

Reads its configuration as one line of JSON from standard input. When standard input ends, the
process that started this one is gone, and this one leaves at once.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from octavo import assemble
from octavo.cli.logs import set_up_logging
from octavo.core.config import EngineConfig
from octavo.transport.zmq_link import ZmqEngineEnd


def _leave_with_parent() -> None:
    # Not through sys.stdin: its lock, held here, would be in the way when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    """Runs the engine until it is told to leave or its parent is gone."""
    set_up_logging()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_leave_with_parent, name="octavo-parent", daemon=True).start()
    assemble.run_engine(config, ZmqEngineEnd(sys.argv[1]))


if __name__ == "__main__":
    main()
