"""Server-sent events, and requests that end when their client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import StreamingResponse

from octavo.server.errors import body_of

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


class ClientGone(Exception):
    """The client closed the connection; nobody will read an answer."""


def event(data: Any) -> bytes:
    """One event whose data is JSON."""
    return b"data: " + _encoder.encode(data) + b"\n\n"


async def or_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Awaits ``work``, and cancels it if the client disconnects first.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for other in (task, watcher):
            other.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await other


async def stream_response(request: Request, chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """Streams events once the first of them exists, so that an early error still has a status.

    A later error becomes an event of its own, and the last one.
    """
    first = await or_disconnect(request, _next(chunks))
    return StreamingResponse(
        _guarded(first, chunks),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _guarded(first: bytes | None, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield first
        async for chunk in chunks:
            yield chunk
    except Exception as error:
        yield event(body_of(error))
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
