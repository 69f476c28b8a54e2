from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.fake_engine import Script, Served, listening, make_tokenizer, served

from octavo.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


class Client:
    """An HTTP client of an application in the same event loop."""

    def __init__(self, parts: Served, http: httpx.AsyncClient) -> None:
        self.parts = parts
        self.http = http

    async def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        response = await self.http.post(path, json=body)
        return response.status_code, response.json()

    async def complete(self, **body: Any) -> dict[str, Any]:
        status, answer = await self.post("/v1/completions", {"model": "echo", **body})
        assert status == 200, answer
        return answer

    async def chat(self, content: str = "hi", **body: Any) -> dict[str, Any]:
        body = {"model": "echo", "messages": [{"role": "user", "content": content}], **body}
        status, answer = await self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    async def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused, checked for its shape."""
        response = await self.http.post(path, json=body)
        return error_of(response, status)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"error"}
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    return error


@asynccontextmanager
async def connected(tokenizer: Tokenizer, script: Script | None, **options: Any) -> AsyncIterator[Client]:
    async with served(script, tokenizer=tokenizer, **options) as parts:
        transport = httpx.ASGITransport(parts.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Client(parts, http)


Scenario = Callable[[Client], Awaitable[None]]


@pytest.fixture
def within(tokenizer: Tokenizer) -> Callable[..., None]:
    """Runs a scenario against a fresh server: ``within(scenario, script, **options)``."""

    def run(scenario: Scenario, script: Script | None = None, **options: Any) -> None:
        async def main() -> None:
            async with connected(tokenizer, script, **options) as client:
                await scenario(client)

        asyncio.run(main())

    return run


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    """(address, parts) of a server that all tests of a module share."""
    with listening(Script(), tokenizer) as found:
        yield found
