"""Calls an ASGI application in this process, as a server would."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message


class Answer(NamedTuple):
    """A whole HTTP response."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> Answer:
    """Posts JSON, and waits for the whole answer. Cancelling it is a client that leaves."""
    start: Message = {"status": 500, "headers": []}
    chunks: list[bytes] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not waiting:  # this client stays until it has its answer
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        else:
            chunks.append(message.get("body", b""))

    await app(_scope(path, len(body)), receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers, b"".join(chunks))


def _scope(path: str, num_bytes: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"batch"),
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": None,
        "server": ("batch", None),
    }
