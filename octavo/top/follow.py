"""Keeps a picture of a server up to date, over its restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.metrics.live import Picture
from octavo.top.client import Refused, Server

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before a connection is tried again; the last one is repeated."""


@dataclass(frozen=True)
class Link:
    """What has become of the connection."""

    is_live: bool = False
    problem: str = ""
    """Why it is not live; empty at first."""
    retry_at: float = 0.0
    """When it is tried again, by `time.monotonic`; 0 for at once."""

    def told(self, now: float) -> str:
        """In words; empty if all is well."""
        if self.is_live:
            return ""
        if not self.problem:
            return "connecting"
        wait = max(0.0, self.retry_at - now)
        return f"{self.problem}; " + (
            f"next try in {wait:.0f} s" if wait >= 0.5 else "trying again"
        )


class Follower:
    """Follows ``/stats/stream`` in a thread that ends with the process.

    Args:
        on_news: called from that thread after every change.
    """

    def __init__(self, server: Server, on_news: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        """To be held while `picture` is read."""
        self.picture = Picture()
        self.link = Link()
        self.refusal: Refused | None = None
        """Why the server does not let us in at all; nothing more will come."""
        self.num_samples = 0
        """That have come since the start, without those of the past."""
        self._server = server
        self._on_news = on_news
        self._num_failures = 0
        self._has_been_live = False

    def start(self) -> None:
        """Begins to follow."""
        threading.Thread(target=self._run, name="octavo-top", daemon=True).start()

    def _run(self) -> None:
        while self.refusal is None:
            problem = "the server has ended the stream"
            try:
                self._follow()
            except Refused as error:
                problem = str(error)
                if not self._has_been_live and 400 <= error.status < 500:
                    self.refusal = error
            except OSError as error:
                problem = f"no connection: {error.strerror or error}"
            except Exception as error:  # a proxy, or another version: whatever came made no sense
                problem = f"the stream broke: {type(error).__name__} {error}"
            wait = WAITS_S[min(self._num_failures, len(WAITS_S) - 1)]
            self._num_failures += 1
            self.link = Link(False, problem, time.monotonic() + wait)
            self._on_news()
            time.sleep(wait)

    def _follow(self) -> None:
        for name, data in self._server.events():
            with self.lock:
                self.picture.apply(name, data)
                self.num_samples += "sample" in data
            self._num_failures = 0
            self._has_been_live = True
            self.link = Link(True)
            self._on_news()
