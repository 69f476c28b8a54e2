"""Engines that are killed, stopped, or broken, under load: nobody hangs, and nobody is lied to."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.aio import eventually
from support.echo_engine import Behaviour, echo_of
from support.fake_engine import Served
from support.http_client import error_of
from support.supervised import children, num_files, shared_memory, supervised

from octavo.tokenizer.tokenizer import Tokenizer

COMPLETIONS = "/v1/completions"
START_S = 10.0
"""More than an echo engine takes to start on a busy machine."""
SLOW = Behaviour(step_s=0.005)


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where links make their directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(tokenizer: Tokenizer, scenario: Any, behaviour: Behaviour = SLOW, **limits: Any) -> None:
    async def main() -> None:
        async with supervised(tokenizer, behaviour, **limits) as (client, parts, supervisor):
            await scenario(client, parts, supervisor)

    asyncio.run(asyncio.wait_for(main(), 60))


async def is_back(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + START_S
    while (await client.get("/health")).status_code != 200:
        assert time.monotonic() < deadline, "the engine does not come back"
        await asyncio.sleep(0.02)


def request(number: int, num_tokens: int) -> dict[str, Any]:
    prompt = [number % 300 + 3, *range(10, 15 + number % 20)]
    return {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": bool(number % 2),
    }


def check(body: dict[str, Any], response: httpx.Response) -> str:
    """Whether the answer is whole and right, or an error that says so; which of them."""
    wanted = echo_of(body["prompt"], body["max_tokens"])
    if response.status_code != 200:
        error = error_of(response, 503)
        assert int(response.headers["retry-after"]) >= 1
        return str(error["code"])
    if not body["stream"]:
        assert response.json()["choices"][0]["token_ids"] == wanted
        return "whole"
    *events, last, rest = response.text.split("\n\n")
    assert rest == ""
    values = [json.loads(event.removeprefix("data: ")) for event in events]
    found = [token for value in values for token in value["choices"][0]["token_ids"]]
    if last == "data: [DONE]":
        assert found == wanted
        return "whole"
    assert found == wanted[: len(found)]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    return f"{error['code']} in the stream"


def test_ten_kills_under_load(tokenizer: Tokenizer, directories: Path) -> None:
    outcomes: Counter[str] = Counter()

    async def scenario(client: httpx.AsyncClient, parts: Served, supervisor: Any) -> None:
        is_over = False

        async def ask(number: int) -> None:
            while not is_over:
                body = request(number, 20 + number)
                response = await asyncio.wait_for(client.post(COMPLETIONS, json=body), START_S)
                outcome = check(body, response)
                outcomes[outcome] += 1
                if outcome != "whole":
                    await asyncio.sleep(0.05)

        async def kill(times: int) -> None:
            for _ in range(times):
                await is_back(client)
                wanted = outcomes["whole"] + 10
                await eventually(lambda wanted=wanted: outcomes["whole"] >= wanted, START_S)
                pid = supervisor.pid
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda: not parts.state.engine.is_alive)
                assert pid not in children()  # no zombie either

        clients = [asyncio.ensure_future(ask(number)) for number in range(24)]
        await kill(1)
        await is_back(client)
        gc.collect()
        before = num_files()
        await kill(9)
        await is_back(client)
        assert (await client.get("/health")).json() == {"status": "ok", "engine_restarts": 10}
        is_over = True
        await asyncio.gather(*clients)
        assert "octavo:engine_restarts_total" in (text := (await client.get("/metrics")).text)
        assert '"echo"} 10.0' in text.partition("octavo:engine_restarts_total{")[2][:40]
        await eventually(lambda: parts.state.engine._num_running == 0)
        body = request(1, 30)
        assert check(body, await client.post(COMPLETIONS, json=body)) == "whole"
        gc.collect()
        assert num_files() <= before
        assert len(children()) == 1
        assert parts.state.engine.num_open == 0

    shared = shared_memory()
    run(tokenizer, scenario)
    assert outcomes["whole"] >= 100
    assert outcomes["engine_dead in the stream"] and outcomes["engine_dead"]
    assert set(outcomes) <= {
        "whole",
        "engine_dead",
        "engine_dead in the stream",
        "engine_restarting",
    }
    assert children() == []
    assert shared_memory() <= shared
    assert list(directories.iterdir()) == []


def test_what_is_said_while_the_engine_restarts(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served, supervisor: Any) -> None:
        body = {"prompt": [5, 6], "max_tokens": 1000, "ignore_eos": True}
        running = asyncio.ensure_future(client.post(COMPLETIONS, json=body))
        await eventually(lambda: parts.state.engine._num_running == 1)
        os.kill(supervisor.pid, signal.SIGKILL)
        killed = time.monotonic()
        error = error_of(await running, 503)
        assert error["code"] == "engine_dead" and "SIGKILL" in error["message"]
        health = await client.get("/health")
        assert time.monotonic() - killed < 1
        assert health.status_code == 503
        assert health.json()["status"] == "restarting"
        assert health.json()["engine_restarts"] == 0
        assert "SIGKILL" in health.json()["error"]["message"]
        for stream in (False, True):
            response = await client.post(COMPLETIONS, json={**body, "stream": stream})
            error = error_of(response, 503)
            assert error["code"] == "engine_restarting"
            assert 1 <= int(response.headers["retry-after"]) <= 60
        assert (await client.get("/v1/models")).status_code == 200
        await is_back(client)
        assert (await client.get("/health")).json()["engine_restarts"] == 1
        text = (await client.get("/metrics")).text
        assert 'octavo:num_requests_running{model_name="echo"} 0' in text

    run(tokenizer, scenario)
    assert "was killed by SIGKILL" in caplog.text
    assert "1 requests in flight have failed" in caplog.text


def test_a_bug_in_a_step_costs_one_restart(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, _parts: Served, _supervisor: Any) -> None:
        body = {"prompt": [5], "max_tokens": 50, "ignore_eos": True}
        error = error_of(await client.post(COMPLETIONS, json=body), 503)
        assert "ZeroDivisionError: a bug on purpose" in error["message"]
        await is_back(client)
        assert (await client.get("/health")).json()["engine_restarts"] == 1
        short = {**body, "max_tokens": 3}
        assert (await client.post(COMPLETIONS, json=short)).status_code == 200

    run(tokenizer, scenario, Behaviour(fail_at_step=5))


def test_an_engine_that_hangs(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served, supervisor: Any) -> None:
        body = {"prompt": [5], "max_tokens": 1000, "ignore_eos": True}
        running = asyncio.ensure_future(client.post(COMPLETIONS, json=body))
        await eventually(lambda: parts.state.engine._num_running == 1)
        os.kill(supervisor.pid, signal.SIGSTOP)
        error = error_of(await asyncio.wait_for(running, 10), 503)
        assert "no sign of life for" in error["message"]
        await is_back(client)
        assert len(children()) == 1

    run(tokenizer, scenario, hang_timeout_s=1.0)


def test_engines_that_die_at_once_are_given_up(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served, _supervisor: Any) -> None:
        engine = parts.state.engine
        body = {"prompt": [5], "max_tokens": 5}
        for _ in range(3):
            while not engine.is_alive:
                await asyncio.sleep(0.02)
            error = error_of(await client.post(COMPLETIONS, json=body), 503)
            assert "ZeroDivisionError" in error["message"]
        error = await asyncio.wait_for(engine.gone(), 5)
        assert "not started again (max_engine_restarts is 2)" in str(error)
        assert error_of(await client.post(COMPLETIONS, json=body), 503)["code"] == "engine_dead"
        assert (await client.get("/health")).json()["status"] == "dead"

    run(tokenizer, scenario, Behaviour(fail_at_step=0), max_restarts=2)
    assert children() == []


def test_the_server_leaves_while_the_engine_restarts(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served, supervisor: Any) -> None:
        os.kill(supervisor.pid, signal.SIGKILL)
        await eventually(lambda: not parts.state.engine.is_alive)
        assert await parts.state.engine.drain(5.0) == 0
        error = error_of(await client.post(COMPLETIONS, json={"prompt": "a"}), 503)
        assert error["code"] == "shutting_down"

    began = time.monotonic()
    run(tokenizer, scenario)
    assert time.monotonic() - began < START_S
    assert children() == []
