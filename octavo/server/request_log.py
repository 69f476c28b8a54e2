"""A line of JSON about each request, in a file or on standard output.

Lines are written by a thread of its own, so that a slow disk holds nobody up. What the thread
cannot keep up with is dropped, counted and told.
"""

from __future__ import annotations

import datetime
import logging
import os
import queue
import sys
import threading
from typing import IO, Any

import msgspec

from octavo.core.errors import ConfigError
from octavo.server.errors import kind_of
from octavo.server.record import RequestRecord

logger = logging.getLogger(__name__)

MAX_LINES = 10_000
"""Lines that may wait to be written."""
_CLOSING_S = 5.0


class RequestLog:
    """Implements `octavo.server.record.Sink`.

    Args:
        target: a path, or ``-`` for standard output.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, target: str) -> None:
        self.num_dropped = 0
        self._target = target
        self._file = self._open()
        self._encoder = msgspec.json.Encoder()
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_LINES)
        self._has_failed = False
        self._thread = threading.Thread(target=self._write, name="octavo-request-log", daemon=True)
        self._thread.start()

    def record(self, record: RequestRecord) -> None:
        """See `Sink.record`."""
        line = self._encoder.encode(entry(record)) + b"\n"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped % 1000 == 1:
                logger.error(
                    "the request log cannot keep up: %d lines dropped so far", self.num_dropped
                )

    def close(self) -> None:
        """See `Sink.close`. May be called twice."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=_CLOSING_S)
            except queue.Full:
                return
            self._thread.join(_CLOSING_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if line is None:
                break
            try:
                self._follow()
                self._file.write(line)
                if self._lines.empty():
                    self._file.flush()
            except (OSError, ConfigError) as error:
                if not self._has_failed:
                    logger.error("the request log cannot be written: %s", error)
                self._has_failed = True
            else:
                self._has_failed = False
        try:
            if self._target == "-":
                self._file.flush()
            else:
                self._file.close()
        except OSError as error:
            logger.error("the request log cannot be written: %s", error)

    def _follow(self) -> None:
        """Opens the file again if it was moved away or deleted, as log rotation does."""
        if self._target == "-":
            return
        try:
            there = os.stat(self._target)
        except FileNotFoundError:
            there = None
        here = os.fstat(self._file.fileno())
        if there is None or (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev):
            self._file.close()
            self._file = self._open()

    def _open(self) -> IO[bytes]:
        if self._target == "-":
            return sys.stdout.buffer
        try:
            return open(self._target, "ab")
        except OSError as error:
            raise ConfigError(f"request_log {self._target}: {error.strerror}") from error


def entry(record: RequestRecord) -> dict[str, Any]:
    """What is told of a request. Seconds count from its arrival at the server."""
    summaries = [part.summary for part in record.parts]
    firsts = [
        part.arrival - record.arrival + part.summary.first_token_s
        for part in record.parts
        if part.summary.first_token_s is not None
    ]
    queues = [summary.queue_s for summary in summaries if summary.queue_s is not None]
    errors = [summary.error for summary in summaries if summary.error is not None]
    time = datetime.datetime.fromtimestamp(record.arrival, datetime.UTC)
    return {
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": record.id,
        "client": record.client,
        "address": record.address,
        "endpoint": record.path,
        "model": record.model,
        "status": record.status,
        "prompt_tokens": sum(summary.num_prompt_tokens for summary in summaries),
        "cached_tokens": sum(summary.num_cached_tokens for summary in summaries),
        "completion_tokens": sum(summary.num_generated_tokens for summary in summaries),
        "queue_s": _rounded(max(queues, default=None)),
        "first_token_s": _rounded(min(firsts, default=None)),
        "total_s": _rounded(record.total_s),
        "finish_reasons": [reason for summary in summaries for reason in summary.finish_reasons],
        "error": (kind_of(errors[0]).code or type(errors[0]).__name__) if errors else None,
        "trace_id": record.trace_id or record.caller_trace_id(),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 6)
