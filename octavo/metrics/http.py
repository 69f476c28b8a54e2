"""What the server was asked over HTTP, and how it answered."""

from __future__ import annotations

from octavo.metrics.buckets import REQUEST_SECONDS
from octavo.metrics.instruments import Counter, Family, Histogram


class HttpMetrics:
    """Requests by method, path and status.

    Paths must come from the routing table, never from clients: their number bounds the memory.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str, ...], Counter] = {}
        self._seconds: dict[tuple[str, ...], Histogram] = {}
        self.families = [
            Family(
                name="http_requests",
                documentation="HTTP requests answered, by method, path and status",
                kind="counter",
                labels=("method", "path", "status"),
                members=self._requests,
            ),
            Family(
                name="http_request_duration_seconds",
                documentation="Receiving a request's head to sending the end of its answer",
                kind="histogram",
                labels=("path",),
                members=self._seconds,
            ),
        ]

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """An answer has been sent to its end, or its client has left."""
        key = (method, path, str(status))
        counter = self._requests.get(key)
        if counter is None:
            counter = self._requests[key] = Counter()
        counter.inc()
        histogram = self._seconds.get((path,))
        if histogram is None:
            histogram = self._seconds[path,] = Histogram(REQUEST_SECONDS)
        histogram.observe(seconds)
