from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from support.fake_engine import MODEL, Script, Served, served
from support.http_client import error_of

from octavo.core.config import ServerConfig
from octavo.core.errors import ConfigError
from octavo.server import run
from octavo.tokenizer.tokenizer import Tokenizer

Scenario = Callable[[httpx.AsyncClient, Served], Awaitable[None]]


def test_a_free_port() -> None:
    with run.bind(ServerConfig(port=0)) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockname()[1] > 0


def test_accepted_connections_do_not_wait_for_acknowledgements() -> None:
    with run.bind(ServerConfig(port=0)) as sock:
        run.listen(sock)
        with socket.create_connection(sock.getsockname()):
            accepted, _ = sock.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*--port"):
            run.bind(ServerConfig(port=port))


def test_a_name_that_no_host_can_have() -> None:
    with pytest.raises(ConfigError, match="port 0: host name must not contain null"):
        run.bind(ServerConfig(host="a\0b", port=0))


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        run.bind(ServerConfig(host="203.0.113.1"))


def running(
    tokenizer: Tokenizer, scenario: Scenario, script: Script, timeout_s: float
) -> list[str]:
    """Serves until the scenario has sent signals; returns what people were told."""
    told: list[str] = []

    async def main() -> None:
        config = ServerConfig(port=0, drain_timeout_s=timeout_s)
        sock = run.bind(config)
        # Small, so that a client that does not read is felt soon; connections inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with served(
            script, tokenizer=tokenizer, config=config, max_model_len=10_000
        ) as parts:
            engine = parts.state.engine
            serving = asyncio.create_task(run.serve(parts.app, engine, sock, config, told.append))
            async with httpx.AsyncClient(base_url=address, timeout=10) as client:
                for _ in range(100):
                    try:
                        await client.get("/health")
                        break
                    except httpx.ConnectError:
                        await asyncio.sleep(0.02)
                await scenario(client, parts)
                await asyncio.wait_for(serving, 10)
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(base_url=address) as client:
                    await client.get("/health")

    asyncio.run(main())
    return told


def body(num_tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "ab", "max_tokens": num_tokens}


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server(tokenizer: Tokenizer, number: signal.Signals) -> None:
    async def scenario(_client: httpx.AsyncClient, _parts: Served) -> None:
        send(number)

    assert running(tokenizer, scenario, Script(), 30.0) == []


def test_running_requests_finish_and_new_ones_are_refused(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served) -> None:
        first = asyncio.create_task(client.post("/v1/completions", json=body(50)))
        while not parts.link.running:
            await asyncio.sleep(0.01)
        send(signal.SIGTERM)
        while not parts.state.engine.is_draining:
            await asyncio.sleep(0.01)
        error = error_of(await client.post("/v1/completions", json=body(1)), 503)
        assert error["code"] == "shutting_down"
        assert (await client.get("/health")).json()["status"] == "draining"
        answer = await first
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 50

    (told,) = running(tokenizer, scenario, Script(step_s=0.02), 30.0)
    assert "1 in flight" in told and "30 s" in told


@pytest.mark.parametrize("how", ["second signal", "time is up"])
def test_requests_that_take_too_long_end_with_an_error(tokenizer: Tokenizer, how: str) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served) -> None:
        whole = asyncio.create_task(client.post("/v1/completions", json=body(9000)))
        async with client.stream(
            "POST", "/v1/completions", json={**body(9000), "stream": True}
        ) as stream:
            while len(parts.link.running) < 2:
                await asyncio.sleep(0.01)
            send(signal.SIGINT)
            if how == "second signal":
                while not parts.state.engine.is_draining:
                    await asyncio.sleep(0.01)
                send(signal.SIGINT)
            text = (await stream.aread()).decode()
        assert '"code":"shutting_down"' in text.split("\n\n")[-2]
        assert "[DONE]" not in text
        error = error_of(await whole, 503)
        assert error["code"] == "shutting_down"

    timeout_s = 0.2 if how == "time is up" else 60.0
    running(tokenizer, scenario, Script(step_s=0.02), timeout_s)


def test_a_client_that_never_reads_does_not_hold_the_server(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_LAST_WORDS_S", 1)

    async def scenario(client: httpx.AsyncClient, parts: Served) -> None:
        where = client.base_url
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((where.host, where.port))
        raw = b'{"prompt": "ab", "max_tokens": 9990, "logprobs": 5, "stream": true}'
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        while not parts.link.running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert parts.state.engine.num_open == 1
        send(signal.SIGTERM)
        leftover.append(sock)

    leftover: list[socket.socket] = []
    running(tokenizer, scenario, Script(), 0.1)
    leftover[0].close()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_access_log(
    tokenizer: Tokenizer, wanted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with served(tokenizer=tokenizer) as parts:
            config = ServerConfig(port=0, access_log=wanted)
            sock = run.bind(config)
            address = f"http://127.0.0.1:{sock.getsockname()[1]}"
            serving = asyncio.create_task(
                run.serve(parts.app, parts.state.engine, sock, config, print)
            )
            await asyncio.sleep(0.1)
            async with httpx.AsyncClient(base_url=address) as client:
                assert (await client.get("/health")).status_code == 200
            send(signal.SIGINT)
            await serving

    asyncio.run(main())
    assert ("GET /health" in caplog.text) == wanted
