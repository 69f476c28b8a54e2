"""An HTTP client for tests that speaks to an application in the same event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from support.fake_engine import MODEL, Script, Served, served

from octavo.tokenizer.tokenizer import Tokenizer


class Client:
    """Requests and the checks that every answer must pass."""

    def __init__(self, parts: Served, http: httpx.AsyncClient) -> None:
        self.parts = parts
        self.http = http

    async def complete(self, **body: Any) -> dict[str, Any]:
        return await self._answer("/v1/completions", {"model": MODEL, **body})

    async def chat(self, content: Any = "hi", **body: Any) -> dict[str, Any]:
        return await self._answer("/v1/chat/completions", chat_body(content, **body))

    async def stream_completion(self, **body: Any) -> list[dict[str, Any]]:
        return await self._stream("/v1/completions", {"model": MODEL, **body})

    async def stream_chat(self, content: Any = "hi", **body: Any) -> list[dict[str, Any]]:
        return await self._stream("/v1/chat/completions", chat_body(content, **body))

    async def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused."""
        return error_of(await self.http.post(path, json=body), status)

    async def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        answer: dict[str, Any] = response.json()
        return answer

    async def _stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        response = await self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(response.content)


def chat_body(content: Any, **body: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **body}


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The values of a stream's events, checked for the framing and the end mark."""
    frames = raw.decode("utf-8").split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    for frame in frames:
        assert frame.startswith("data: {")
        assert "\n" not in frame and "\r" not in frame
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of an answer, checked for its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"error"}
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    return error


@asynccontextmanager
async def connected(
    tokenizer: Tokenizer, script: Script | None = None, **options: Any
) -> AsyncIterator[Client]:
    async with served(script, tokenizer=tokenizer, **options) as parts:
        transport = httpx.ASGITransport(parts.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Client(parts, http)
