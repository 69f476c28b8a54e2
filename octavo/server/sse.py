"""Server-sent events, and requests that end when their client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import body_of

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


class ClientGone(Exception):
    """The client closed the connection; nobody will read an answer."""


def event(data: Any) -> bytes:
    """One event whose data is JSON."""
    return b"data: %b\n\n" % _encoder.encode(data)


def named_event(name: str, data: Any) -> bytes:
    """One event with a name of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(data))


async def or_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Awaits ``work``, and cancels it if the client disconnects first.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watcher)


def error_event(error: Exception) -> bytes:
    """The event that ends a stream in OpenAI's older APIs."""
    return event(body_of(error))


async def stream_response(
    request: Request,
    chunks: AsyncGenerator[bytes, None],
    describe: Callable[[Exception], bytes] = error_event,
) -> Response:
    """Streams events once the first of them exists, so that an early error still has a status.

    A later error becomes an event of its own, and the last one: ``describe`` makes it.
    """
    first = await or_disconnect(request, anext(chunks, b""))
    return _EventStream(first, chunks, describe)


class _EventStream(Response):
    """Sends chunks as fast as the client reads them, and closes their source when it leaves.

    While the client's connection is full, nothing more is taken from the source.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        chunks: AsyncGenerator[bytes, None],
        describe: Callable[[Exception], bytes],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._chunks = chunks
        self._describe = describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.ensure_future(self._send_all(send))
        watcher = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sender, watcher), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _end(sender, watcher)
            await self._chunks.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            body = self._describe(error)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs, and waits until it has cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
