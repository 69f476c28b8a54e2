"""Watches every HTTP request from outside: counts it, and has it recorded if anyone keeps records.

Pure ASGI, so that streams and their cancellation pass through untouched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.metrics.http import HttpMetrics
from octavo.server.errors import route_path
from octavo.server.record import RequestRecord, Sink

logger = logging.getLogger(__name__)

OTHER = "other"
"""The path of whatever is in no routing table, in metrics and logs: clients must not be able to
make as many series as they like."""
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_RECORDED = "POST"
"""What asks for work."""
_UNFORESEEN = 500


class Observer:
    """Sees every answer, those of refusals included."""

    def __init__(
        self, app: ASGIApp, metrics: HttpMetrics, sinks: Sequence[Sink], paths: frozenset[str]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._sinks = sinks
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        record = self._begin(scope) if self._sinks and method == _RECORDED else None
        status = _UNFORESEEN  # an exception that comes as far as this is answered outside

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            path = self._path_of(scope)
            self._metrics.observe(method, path, status, seconds)
            if record is not None:
                record.path, record.status, record.total_s = path, status, seconds
                self._end(scope, record)

    def _begin(self, scope: Scope) -> RequestRecord:
        address = scope.get("client")
        record = RequestRecord(
            method=scope["method"],
            path=OTHER,
            arrival=time.time(),
            address=address[0] if address else None,
            headers=scope["headers"],
        )
        scope.setdefault("state", {})["record"] = record
        return record

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        principal = scope["state"].get("principal")
        record.client = None if principal is None else principal.name
        for sink in self._sinks:
            try:
                sink.record(record)
            except Exception:  # records are not worth an answer
                logger.exception("a request could not be recorded")

    def _path_of(self, scope: Scope) -> str:
        """The path by the routing table; of a request that did not come so far, if it is there."""
        route = scope.get("route")
        asked: str = route_path(scope) if route is None else route.path
        return asked if asked in self._paths else OTHER
