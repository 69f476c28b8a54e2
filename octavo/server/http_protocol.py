"""uvicorn's HTTP protocol, with limits on what a client may hold without ever asking anything.

A connection is between requests, or in the head of one (request line and headers), or in its
body. Heads and bodies have a time by which they must have come, however steadily they trickle, and
heads have a size. What breaks a limit is answered in OpenAI's shape, as is what is no HTTP at all,
and the connection is closed.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle, Transport
from http import HTTPStatus
from typing import Any, ClassVar, Literal, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.core.access_config import LimitsConfig
from octavo.server.errors import Kind, error_body

_LINGER_S = 5.0
"""For the rest of a body that nobody reads; a client that is cut off while it still sends might
never see the answer."""


def limited_protocol(limits: LimitsConfig) -> type[HttpToolsProtocol]:
    """A protocol class for `uvicorn.Config`."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


class _LimitedProtocol(HttpToolsProtocol):
    limits: ClassVar[LimitsConfig]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        """Whether the next byte is of a head; else it is of a body."""
        self._head_bytes = 0
        self._timed: Literal["head", "body"] | None = None
        self._timer: TimerHandle | None = None
        self._refusal: tuple[Kind, str] | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """A client has connected. See `asyncio.Protocol`."""
        super().connection_made(cast(Transport, transport))
        limit = self.limits.max_connections
        if limit is not None and len(self.connections) > limit:
            kind = Kind(503, "server_error", "too_many_connections")
            self._refuse(
                kind, f"{limit} connections are open, which is all there may be: try later"
            )
        else:
            self._start("head", self.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone. See `asyncio.Protocol`."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests. See `asyncio.Protocol`."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            self._stop()
        elif not self._in_head:
            self._start("body", self.limits.body_timeout_s)
        elif not self._head_bytes:
            self._stop()
        elif self._head_bytes > self.limits.max_header_bytes:
            self._refuse(*_head_too_large(self.limits.max_header_bytes))
        else:
            self._start("head", self.limits.header_timeout_s)

    def on_headers_complete(self) -> None:
        """The end of a head. See `httptools`."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._refusal = _head_too_large(self.limits.max_header_bytes)
            raise ValueError("the head is too large")  # httptools hands it to send_400_response
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of a request. See `httptools`."""
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        """An answer has been sent; with luck the request has been received by then."""
        super().on_response_complete()
        if not self._in_head:
            self._stop()
            self._start("body", _LINGER_S)

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser refuses."""
        kind = Kind(400, "invalid_request_error", "malformed_http")
        self._refuse(*(self._refusal or (kind, "this is no valid HTTP/1.1 request")))

    def _unsupported_upgrade_warning(self) -> None:
        """Requests to speak another protocol are answered in this one; that is no news."""

    def _start(self, phase: Literal["head", "body"], seconds: float) -> None:
        if self._timed != phase:
            self._stop()
            self._timed = phase
            self._timer = self.loop.call_later(seconds, self._time_is_up, phase, seconds)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timed = None

    def _time_is_up(self, phase: Literal["head", "body"], seconds: float) -> None:
        self._stop()
        if self.transport.is_closing():
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (phase == "head" and is_answering):
            self._start(phase, seconds)  # it came before its turn, and is not being read
        elif phase == "body" and (not is_answering or self.cycle.response_started):
            self.transport.close()
        elif phase == "head" and not self._head_bytes:
            self.transport.close()  # it never said a word
        else:
            what = "headers" if phase == "head" else "body"
            kind = Kind(408, "invalid_request_error", "request_too_slow")
            self._refuse(
                kind, f"the request's {what} took longer than {seconds:g} s: send it faster"
            )

    def _refuse(self, kind: Kind, message: str) -> None:
        """Answers without the application, and closes the connection."""
        self._stop()
        body = msgspec.json.encode(error_body(message, kind))
        later = "retry-after: 1\r\n" if kind.status == 503 else ""
        head = (
            f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{later}"
            "connection: close\r\n\r\n"
        )
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:  # whatever was said now would look like a part of it
                body, head = b"", ""
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(head.encode() + body)
        self.transport.close()


def _head_too_large(limit: int) -> tuple[Kind, str]:
    kind = Kind(431, "invalid_request_error", "headers_too_large")
    return kind, f"request line and headers are larger than {limit} bytes: send less"
