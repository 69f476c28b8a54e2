"""Too much work: a bounded line, deadlines, and clients that do not read."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import time
from typing import Any

import httpx
import psutil
import pytest
from support.aio import eventually
from support.echo_engine import Behaviour, echo_of, engine_thread
from support.fake_engine import Script, Served, listening, served
from support.http_client import Client, error_of

from octavo.core.config import ServerConfig
from octavo.server import run as run_module
from octavo.tokenizer.tokenizer import Tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def run(tokenizer: Tokenizer, scenario: Any, **config: Any) -> None:
    """Over a real engine, which runs one request at a time."""

    async def main() -> None:
        with engine_thread(Behaviour(step_s=0.01, max_num_seqs=1)) as link:
            async with served(
                Script(), tokenizer=tokenizer, link=link, config=ServerConfig(**config)
            ) as parts:
                # Its information says 256, but the scheduler has one seat.
                engine = parts.state.engine
                engine._info = dataclasses.replace(engine.info, max_num_seqs=1)
                transport = httpx.ASGITransport(parts.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                    await scenario(Client(parts, http))

    asyncio.run(asyncio.wait_for(main(), 60))


async def fill(client: Client, num: int, prompt: Any = (5, 6)) -> list[asyncio.Task[Any]]:
    """One request that runs and ``num`` that wait, for as long as they are not cancelled."""
    body = {"prompt": list(prompt), "max_tokens": 1500, "ignore_eos": True}
    engine = client.parts.state.engine
    tasks = [asyncio.ensure_future(client.http.post(COMPLETIONS, json=body))]
    await eventually(lambda: engine._num_running == 1)
    tasks += [asyncio.ensure_future(client.http.post(COMPLETIONS, json=body)) for _ in range(num)]
    await eventually(lambda: engine.num_waiting == num)
    return tasks


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_line_that_is_full(tokenizer: Tokenizer, path: str, stream: bool) -> None:
    content = {"prompt": "a"} if path == COMPLETIONS else {"messages": [user("a")]}

    async def scenario(client: Client) -> None:
        tasks = await fill(client, 3)
        response = await client.http.post(path, json={**content, "stream": stream})
        error = error_of(response, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert "3 requests wait" in error["message"] and "limit of 3" in error["message"]
        assert 1 <= int(response.headers["retry-after"]) <= 60
        await cancel(tasks[-1:])
        late = asyncio.ensure_future(client.http.post(path, json={**content, "max_tokens": 2}))
        await eventually(lambda: client.parts.state.engine.num_waiting == 3)
        await cancel(tasks)
        assert (await late).status_code == 200

    run(tokenizer, scenario, max_waiting_requests=3)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_every_completion_counts(tokenizer: Tokenizer) -> None:
    async def scenario(client: Client) -> None:
        tasks = await fill(client, 1)
        for body in ({"prompt": "a", "n": 3}, {"prompt": ["a", "b", "c"]}):
            error = error_of(await client.http.post(COMPLETIONS, json=body), 429)
            assert "3 more would exceed the limit of 3" in error["message"]
        await cancel(tasks)

    run(tokenizer, scenario, max_waiting_requests=3)


def test_whoever_is_first_in_line_may_be_large(tokenizer: Tokenizer) -> None:
    async def scenario(client: Client) -> None:
        body = {"prompt": ["a", "b", "c", "d"], "n": 2, "max_tokens": 2}
        answer = (await client.http.post(COMPLETIONS, json=body)).json()
        assert len(answer["choices"]) == 8

    run(tokenizer, scenario, max_waiting_requests=2, max_waiting_tokens=1)


def test_tokens_that_wait_are_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: Client) -> None:
        tasks = await fill(client, 2, [5] * 40)
        error = error_of(await client.http.post(COMPLETIONS, json={"prompt": [5] * 30}), 429)
        assert "80 prompt tokens wait, 30 more would exceed the limit of 100" in error["message"]
        small = asyncio.ensure_future(client.http.post(COMPLETIONS, json={"prompt": [5] * 20}))
        await eventually(lambda: client.parts.state.engine.waiting.num_tokens == 100)
        # Now that nothing has a chance, nothing is tokenized.
        monkeypatch.setattr(type(tokenizer), "encode", None)
        error = error_of(await client.http.post(COMPLETIONS, json={"prompt": "a"}), 429)
        assert "100 prompt tokens wait" in error["message"]
        await cancel([*tasks, small])

    run(tokenizer, scenario, max_waiting_tokens=100)


def test_no_limits(tokenizer: Tokenizer) -> None:
    async def scenario(client: Client) -> None:
        tasks = await fill(client, 30)
        await cancel(tasks)

    run(tokenizer, scenario, max_waiting_requests=0, max_waiting_tokens=0)


def test_a_burst_that_the_engine_can_run_at_once_does_not_wait(tokenizer: Tokenizer) -> None:
    async def main() -> None:
        config = ServerConfig(max_waiting_requests=1)
        with engine_thread(Behaviour(step_s=0.05)) as link:
            async with served(Script(), tokenizer=tokenizer, link=link, config=config) as parts:
                transport = httpx.ASGITransport(parts.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                    body = {"prompt": "a", "max_tokens": 3}
                    answers = [http.post(COMPLETIONS, json=body) for _ in range(50)]
                    for answer in await asyncio.gather(*answers):
                        assert answer.status_code == 200

    asyncio.run(main())


# ---------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("prompts", [1, 2])
def test_a_request_that_is_not_done_in_time(tokenizer: Tokenizer, path: str, prompts: int) -> None:
    content: dict[str, Any] = {"messages": [user("a")], "n": prompts}
    if path == COMPLETIONS:
        content = {"prompt": ["a"] * prompts}
    content |= {"max_tokens": 1000, "ignore_eos": True, "timeout": 0.3}

    async def scenario(client: Client) -> None:
        began = time.monotonic()
        error = error_of(await client.http.post(path, json=content), 504)
        assert (error["type"], error["code"]) == ("timeout_error", "request_timeout")
        assert "generated" in error["message"]
        response = await client.http.post(path, json={**content, "stream": True})
        assert response.status_code == 200
        *chunks, last, rest = response.text.split("\n\n")
        assert chunks and rest == ""
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_timeout"
        assert time.monotonic() - began < 5
        engine = client.parts.state.engine
        assert engine.num_open == 0
        await eventually(lambda: engine._num_running == 0)

    run(tokenizer, scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_has_not_begun_in_time(tokenizer: Tokenizer, stream: bool) -> None:
    async def scenario(client: Client) -> None:
        tasks = await fill(client, 0)
        body = {"prompt": "a", "timeout": 0.2, "stream": stream}
        error = error_of(await client.http.post(COMPLETIONS, json=body), 504)
        assert "no token yet" in error["message"]
        assert client.parts.state.engine.num_waiting == 0
        await cancel(tasks)

    run(tokenizer, scenario)


def test_the_servers_own_limit(tokenizer: Tokenizer) -> None:
    async def scenario(client: Client) -> None:
        body = {"prompt": [5, 6], "max_tokens": 1000, "ignore_eos": True}
        error_of(await client.http.post(COMPLETIONS, json=body), 504)
        error_of(await client.http.post(COMPLETIONS, json={**body, "timeout": 0.1}), 504)
        error = await client.refused(COMPLETIONS, {**body, "timeout": 0.4})
        assert error["param"] == "timeout"
        assert "0.3 at most" in error["message"]
        short = await client.complete(**{**body, "max_tokens": 3, "return_token_ids": True})
        assert short["choices"][0]["token_ids"] == echo_of([5, 6], 3)

    run(tokenizer, scenario, request_timeout_s=0.3)


@pytest.mark.parametrize("value", [0, -1, 86_401, "1", True, float("1e400")])
def test_timeouts_that_make_no_sense(tokenizer: Tokenizer, value: Any) -> None:
    async def scenario(client: Client) -> None:
        raw = json.dumps({"prompt": "a", "timeout": value}).encode()
        headers = {"content-type": "application/json"}
        error_of(await client.http.post(COMPLETIONS, content=raw, headers=headers), 400)
        assert (await client.complete(prompt="a", timeout=86_400))["choices"]
        assert (await client.complete(prompt="a", timeout=None))["choices"]

    run(tokenizer, scenario)


# ---------------------------------------------------------------------- slow clients


def endless(address: str, num_tokens: int) -> socket.socket:
    """A client that asks for a stream and never reads it."""
    host, port = address.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    raw = json.dumps(
        {"prompt": "ab", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    ).encode()
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    return sock


def wait_until(condition: Any, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_that_do_not_read_cost_little_memory(tokenizer: Tokenizer) -> None:
    """A token costs some ten bytes here, not the hundreds of an event, let alone of its pieces."""
    num_clients, num_tokens = 20, 15_000
    with listening(Script(), tokenizer, max_model_len=num_tokens + 10) as (address, parts):
        before = psutil.Process().memory_info().rss
        socks = [endless(address, num_tokens) for _ in range(num_clients)]
        engine = parts.state.engine
        wait_until(lambda: engine.metrics.finished()["length"] == num_clients, 60)
        grown = psutil.Process().memory_info().rss - before
        assert grown < num_clients * num_tokens * 100
        assert engine.num_open == num_clients  # what is there is theirs to read
        for sock in socks:
            sock.close()
        wait_until(lambda: engine.num_open == 0)


def test_clients_that_do_not_read_for_too_long_are_given_up(tokenizer: Tokenizer) -> None:
    config = ServerConfig(port=0, slow_client_timeout_s=2.0)
    serving: list[Any] = []

    async def main() -> None:
        sock = run_module.bind(config)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with served(
            Script(), tokenizer=tokenizer, config=config, max_model_len=10**7
        ) as parts:
            run_module.listen(sock)
            serving.append(
                asyncio.create_task(
                    run_module.serve(parts.app, parts.state.engine, sock, config, print)
                )
            )
            files = len(os.listdir("/proc/self/fd"))
            await check(address, parts)
            await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 2)
            serving[0].cancel()
            await asyncio.wait(serving)
        sock.close()

    async def check(address: str, parts: Served) -> None:
        unread = await asyncio.to_thread(endless, address, 9_000_000)
        async with httpx.AsyncClient(base_url=address) as client:
            body = {"prompt": "ab", "max_tokens": 9_000_000, "ignore_eos": True, "stream": True}
            async with client.stream("POST", COMPLETIONS, json=body) as stream:
                began = time.monotonic()
                async for _ in stream.aiter_bytes(8000):
                    if time.monotonic() - began > 5:
                        break
                    await asyncio.sleep(0.005)  # slow, but it reads
                assert parts.link.running == [parts.script.submits[-1].request_id]
        await eventually(lambda: parts.state.engine.num_open == 0)
        unread.close()

    asyncio.run(asyncio.wait_for(main(), 30))
