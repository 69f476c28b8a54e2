"""What holds for every endpoint holds for those of other APIs: `/v1/messages`, `/v1/responses`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.aio import aio, eventually
from support.echo_engine import Behaviour
from support.fake_engine import Script
from support.http_client import Client, connected
from support.whole_server import Whole, whole_server

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.request_log import RequestLog
from octavo.tokenizer.tokenizer import Tokenizer

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TEXT = "hello " * 30
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5},
    RESPONSES: {"input": TEXT, "max_output_tokens": 5},
}
ENDLESS: dict[str, dict[str, Any]] = {
    MESSAGES: BODIES[MESSAGES] | {"max_tokens": 1500, "ignore_eos": True},
    RESPONSES: BODIES[RESPONSES] | {"max_output_tokens": 1500, "ignore_eos": True},
}
BOTH = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])


def cached(path: str, answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    if path == MESSAGES:
        found: int = usage["cache_read_input_tokens"]
    else:
        found = usage["input_tokens_details"]["cached_tokens"]
    return found


def message_of(path: str, answer: dict[str, Any]) -> str:
    """Of an error in the shape of the API."""
    assert set(answer) == ({"type", "error"} if path == MESSAGES else {"error"})
    message: str = answer["error"]["message"]
    return message


@BOTH
def test_caches_of_tenants_are_apart(tokenizer: Tokenizer, path: str) -> None:
    security = SecurityConfig(api_key=("sk-a", "sk-b"), cache_isolation="key")

    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer, config=ServerConfig(security=security)) as whole:
            counts = []
            for key in ("sk-a", "sk-a", "sk-b", "sk-b"):
                answer = await whole.http.post(path, json=BODIES[path], headers={"x-api-key": key})
                counts.append(cached(path, answer.json()))
            assert counts[0] == counts[2] == 0
            assert counts[1] == counts[3] > 0

    scenario()


@BOTH
def test_requests_are_logged_and_counted(tokenizer: Tokenizer, path: str, tmp_path: Path) -> None:
    target = tmp_path / "log"

    @aio
    async def scenario() -> None:
        log = RequestLog(str(target))
        async with whole_server(tokenizer, sinks=(log,)) as whole:
            answer = (await whole.http.post(path, json=BODIES[path])).json()
            await whole.http.post(path, json=BODIES[path] | {"stream": True})
            await whole.http.post(path, json={})
            samples = (await whole.http.get("/metrics")).text
        log.close()
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert [line["endpoint"] for line in lines] == [path] * 3
        assert [line["status"] for line in lines] == [200, 200, 400]
        assert lines[0]["id"] == answer["id"]
        assert [line["completion_tokens"] for line in lines] == [5, 5, 0]
        assert f'path="{path}"' in samples

    scenario()


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_line_and_a_deadline(tokenizer: Tokenizer, path: str, stream: bool) -> None:
    behaviour = Behaviour(step_s=0.01, max_num_seqs=1)

    @aio
    async def scenario() -> None:
        config = ServerConfig(max_waiting_requests=1)
        async with whole_server(tokenizer, behaviour, config=config) as whole:
            sent = ENDLESS[path] | {"stream": stream}
            engine = whole.parts.state.engine
            # Its information says 256, but the scheduler has one seat.
            engine._info = dataclasses.replace(engine.info, max_num_seqs=1)
            tasks = [asyncio.ensure_future(whole.http.post(path, json=sent))]
            await eventually(lambda: engine._num_running == 1)
            tasks.append(asyncio.ensure_future(whole.http.post(path, json=sent)))
            await eventually(lambda: engine.num_waiting == 1)
            late = await whole.http.post(path, json=sent)
            assert late.status_code == 429 and int(late.headers["retry-after"]) >= 1
            assert "overloaded" in message_of(path, late.json())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await whole.is_idle()
            slow = await whole.http.post(path, json=ENDLESS[path] | {"timeout": 0.2})
            assert slow.status_code == 504
            assert "not done after" in message_of(path, slow.json())
            await whole.is_idle()

    scenario()


@BOTH
def test_a_server_that_is_about_to_leave(tokenizer: Tokenizer, path: str) -> None:
    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer) as whole:
            await whole.parts.state.engine.drain(1.0)
            answer = await whole.http.post(path, json=BODIES[path])
            assert answer.status_code == 503
            assert "shutting down" in message_of(path, answer.json())

    scenario()


async def aborted(whole: Whole, path: str) -> dict[str, Any]:
    """The answer to a request that is ended from elsewhere."""
    task = asyncio.ensure_future(whole.http.post(path, json=ENDLESS[path]))
    while not (rows := (await whole.http.get("/stats")).json()["requests"]["rows"]):
        await asyncio.sleep(0.005)
    (row,) = rows
    assert (await whole.http.post(f"/requests/{row['id']}/abort")).status_code == 200
    answer: dict[str, Any] = (await task).json()
    return answer


def test_answers_that_were_aborted(tokenizer: Tokenizer) -> None:
    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer, Behaviour(step_s=0.01)) as whole:
            assert (await aborted(whole, MESSAGES))["stop_reason"] == "pause_turn"
            answer = await aborted(whole, RESPONSES)
            assert (answer["status"], answer["incomplete_details"]) == ("incomplete", None)

    scenario()


def test_the_document_describes_them(tokenizer: Tokenizer) -> None:
    async def scenario(client: Client) -> None:
        paths = (await client.http.get("/openapi.json")).json()["paths"]
        for path in (MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES):
            assert "requestBody" in paths[path]["post"]
            assert path in (await client.http.get("/docs")).text

    async def main() -> None:
        async with connected(tokenizer, Script()) as client:
            await scenario(client)

    asyncio.run(main())
