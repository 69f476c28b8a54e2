"""Connections that hold on to the server without asking anything, and what is no HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from support.aio import aio
from support.fake_engine import Script
from support.raw_http import Listening, get, listening_here, post, status_of

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import ServerConfig
from octavo.tokenizer.tokenizer import Tokenizer

COMPLETIONS = "/v1/completions"
BODY = b'{"prompt": "ab", "max_tokens": 3}'


def limited(**limits: Any) -> ServerConfig:
    return ServerConfig(limits=LimitsConfig(**limits))


def error_in(raw: bytes, status: int) -> dict[str, Any]:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert status_of(raw) == status, raw
    assert b"content-type: application/json" in head
    assert b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def trickle(server: Listening, first: bytes, drop: bytes, gap_s: float = 0.05) -> bytes:
    """What comes back to a client that goes on sending ``drop`` until it is cut off."""
    reader, writer = await server.connect()
    writer.write(first)
    answer = asyncio.create_task(reader.read())
    while not answer.done():
        writer.write(drop)
        await asyncio.wait((answer,), timeout=gap_s)
    writer.close()
    return answer.result()


@aio
async def test_what_is_no_http(tokenizer: Tokenizer) -> None:
    async with listening_here(ServerConfig(), tokenizer=tokenizer) as server:
        for raw in (b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            error = error_in(await server.raw(raw), 400)
            assert error["code"] == "malformed_http"
        assert status_of(await server.raw(get("/health"))) == 200


@aio
async def test_headers_that_never_end(tokenizer: Tokenizer) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    async with listening_here(limited(header_timeout_s=0.3), tokenizer=tokenizer) as server:
        for first, drop in (
            (head, b""),
            (head, b"X: y\r\n"),
            (head + b"X: ", b"y"),
            (b"GET /", b"y"),
        ):
            began = time.monotonic()
            error = error_in(await trickle(server, first, drop), 408)
            assert "headers took longer than 0.3 s" in error["message"]
            assert error["code"] == "request_too_slow"
            assert 0.25 < time.monotonic() - began < 3
        for first, drop in ((b"", b""), (b"", b"\r\n")):
            assert status_of(await trickle(server, first, drop)) in (0, 408)
        again = get("/health").replace(b"Connection: close\r\n", b"")
        answer = await trickle(server, again, b"\r\n")
        assert status_of(answer) == 200
        assert answer.count(b"HTTP/1.1") <= 2


@aio
async def test_a_body_that_never_ends(tokenizer: Tokenizer) -> None:
    script = Script()
    async with listening_here(
        limited(body_timeout_s=0.3), tokenizer=tokenizer, script=script
    ) as server:
        announced = post(COMPLETIONS, BODY).replace(b"Length: 33", b"Length: 3000")
        chunked = post(COMPLETIONS, b"").replace(
            b"Content-Length: 0", b"Transfer-Encoding: chunked"
        )
        assert b"3000" in announced and b"chunked" in chunked
        for first, drop in ((announced, b""), (announced, b" "), (chunked, b"1\r\n{\r\n")):
            began = time.monotonic()
            error = error_in(await trickle(server, first, drop), 408)
            assert "body took longer than 0.3 s" in error["message"]
            assert time.monotonic() - began < 3
        assert not script.submits
        assert status_of(await server.raw(post(COMPLETIONS, BODY))) == 200


@aio
async def test_a_body_that_nobody_waits_for(
    tokenizer: Tokenizer, monkeypatch: Any
) -> None:  # refused before it was sent
    monkeypatch.setattr("octavo.server.http_protocol._LINGER_S", 0.3)
    config = ServerConfig(
        security=SecurityConfig(api_key=("k",)), limits=LimitsConfig(keep_alive_timeout_s=20)
    )
    async with listening_here(config, tokenizer=tokenizer) as server:
        first = post(COMPLETIONS, BODY).replace(b"Length: 33", b"Length: 3000000")
        first = first.replace(b"Connection: close\r\n", b"")
        began = time.monotonic()
        assert status_of(await trickle(server, first, b" ")) == 401
        assert time.monotonic() - began < 3


@aio
async def test_an_answer_may_take_longer_than_a_request(tokenizer: Tokenizer) -> None:
    config = limited(header_timeout_s=0.1, body_timeout_s=0.1, keep_alive_timeout_s=1)
    async with listening_here(
        config, tokenizer=tokenizer, script=Script(step_s=0.02), max_model_len=200
    ) as server:
        long = b'{"prompt": [5], "max_tokens": 25, "stream": %b, "ignore_eos": true}'
        for stream in (b"true", b"false"):
            answer = await server.raw(post(COMPLETIONS, long % stream))
            assert status_of(answer) == 200
            assert b'"finish_reason":"length"' in answer
        # A second request that comes before its turn waits for the first one's end.
        first = post(COMPLETIONS, long % b"false").replace(b"Connection: close\r\n", b"")
        for second in (get("/version"), post(COMPLETIONS, BODY)):
            for cut in (10, len(second) - 3):
                reader, writer = await server.connect()
                writer.write(first + second[:cut])
                await asyncio.sleep(0.3)
                writer.write(second[cut:])
                answers = await reader.read()
                assert answers.count(b"HTTP/1.1 200 OK") == 2, answers
                writer.close()


@aio
async def test_headers_that_are_too_large(tokenizer: Tokenizer) -> None:
    async with listening_here(limited(max_header_bytes=2000), tokenizer=tokenizer) as server:
        for raw in (
            get("/health", "X: " + "y" * 2000),
            get("/health", *["X: y"] * 700),
            get("/health?" + "y" * 2000),
            b"GET /" + b"y" * 3000,
            b"GET /health HTTP/1.1\r\nX: " + b"y" * 3000,
            b"G" * 3000,
        ):
            answer = await server.raw(raw)
            error = error_in(answer, 400 if raw.startswith(b"GG") else 431)
            if status_of(answer) == 431:
                assert "larger than 2000 bytes" in error["message"]
        assert status_of(await server.raw(get("/health", "X: " + "y" * 1800))) == 200
        body = b" " * 5000 + BODY
        assert status_of(await server.raw(post(COMPLETIONS, body))) == 200


@aio
async def test_connections_that_are_too_many(tokenizer: Tokenizer) -> None:
    async with listening_here(limited(max_connections=2), tokenizer=tokenizer) as server:
        held = [await server.connect() for _ in range(2)]
        for reader, writer in held:
            writer.write(get("/health").replace(b"Connection: close\r\n", b""))
            await reader.readuntil(b"}")
        answer = await server.raw(b"")
        error = error_in(answer, 503)
        assert "2 connections are open" in error["message"]
        assert b"retry-after: 1\r\n" in answer
        held[0][1].close()
        for _ in range(100):
            answer = await server.raw(get("/health"))
            if status_of(answer) == 200:
                break
            await asyncio.sleep(0.01)
        assert status_of(answer) == 200
        held[1][1].close()


@aio
async def test_idle_connections_end(tokenizer: Tokenizer) -> None:
    async with listening_here(limited(keep_alive_timeout_s=1), tokenizer=tokenizer) as server:
        began = time.monotonic()
        answer = await server.raw(get("/health").replace(b"Connection: close\r\n", b""))
        assert status_of(answer) == 200
        assert 0.9 < time.monotonic() - began < 5
