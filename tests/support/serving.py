"""``octavo serve`` with the embedded model, in processes of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WAIT_S = 60.0


@dataclass(slots=True)
class Serving:
    """A server that is ready."""

    process: subprocess.Popen[str]
    url: str
    said: str
    """What it has written to standard error."""

    def end(self) -> int:
        """Asks it to leave; returns its exit status."""
        self.process.terminate()
        _, rest = self.process.communicate(timeout=_WAIT_S)
        self.said += rest
        return self.process.returncode


@contextmanager
def served_model(*flags: str) -> Iterator[Serving]:
    command = [sys.executable, "-P", "-m", "octavo.cli", "serve", "smollm2", "--port", "0"]
    limits = ["--num-blocks", "600", "--num-threads", "1", "--max-model-len", "1024"]
    process = subprocess.Popen([*command, *limits, *flags], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            found = re.search(r"ready after .* (http://\S+)/v1", line)
            if found:
                yield Serving(process, found[1], said)
                return
        raise AssertionError(f"not started: {said}")
    finally:
        process.kill()
        process.communicate()
