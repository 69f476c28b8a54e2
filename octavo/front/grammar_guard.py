"""Tries a grammar in a process of its own before anyone depends on it.

The grammar library cannot be interrupted, and some grammars make it compute for minutes, eat all
memory or overflow its stack. A child process that kills itself then costs one request an answer of
400, and nobody else anything. It starts with
`GrammarGuard.start`, or with the first grammar.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from octavo.core.errors import EngineDead, InvalidParameter, UnsupportedParameter
from octavo.core.params import Structured
from octavo.grammar.source import complaint
from octavo.grammar.trial import TIME_LIMIT_S, Verdict

_REMEMBERED = 4096
"""Grammars whose verdict is kept."""


class GrammarGuard:
    """Answers whether grammars can be used; safe to share between event loops and threads.

    Args:
        command: starts the child, `octavo.grammar.trial.serve` with a model's vocabulary.
        config_line: what the child reads first.
    """

    def __init__(self, command: Sequence[str], config_line: str) -> None:
        self._command = list(command)
        self._config_line = config_line
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-guard")
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    async def check(self, structured: Structured) -> None:
        """Waits until the grammar has been tried, one after the other.

        Raises:
            RequestError: it is wrong, or costs more than any grammar may.
        """
        verdict = self._verdicts.get(_digest(structured))
        if verdict is None:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._pool, self._try, structured)
        if verdict.error is not None:
            kind = InvalidParameter if verdict.is_grammar else UnsupportedParameter
            raise kind(verdict.error, param="structured")

    def start(self) -> None:
        """Starts the child, so that the first grammar need not wait for it; returns at once."""
        self._pool.submit(self._running_child)

    def close(self) -> None:
        """Ends the child. May be called twice."""
        with self._lock:
            self._is_closed = True
            self._end_child()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, structured: Structured) -> Verdict:
        digest = _digest(structured)
        known = self._verdicts.get(digest)
        if known is not None:
            return known
        verdict = self._ask(structured)
        self._verdicts[digest] = verdict
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        return verdict

    def _ask(self, structured: Structured) -> Verdict:
        child = self._running_child()
        assert child.stdin is not None and child.stdout is not None
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(structured) + b"\n")
            child.stdin.flush()
            # Ends when the child does, and the child ends when its time is up.
            answer = child.stdout.readline()
        if answer.endswith(b"\n"):
            return msgspec.json.decode(answer, type=Verdict)
        with self._lock:
            self._end_child()
            if self._is_closed:
                raise EngineDead("the server is shutting down: send the request again elsewhere")
        error = complaint(
            structured,
            f"it takes more than {TIME_LIMIT_S} s or too much memory to prepare: make it simpler",
        )
        return Verdict(str(error))

    def _running_child(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise EngineDead("the server is shutting down: send the request again elsewhere")
            if self._child is None:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                assert self._child.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    self._child.stdin.write(self._config_line.encode() + b"\n")
            return self._child

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _digest(structured: Structured) -> bytes:
    text = f"{structured.kind} {structured.value}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
