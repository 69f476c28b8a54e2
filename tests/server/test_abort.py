"""Ending a request that somebody else waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.aio import aio
from support.echo_engine import Behaviour
from support.http_client import error_of, events_of
from support.whole_server import Whole, whole_server

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.tokenizer.tokenizer import Tokenizer

SLOW = Behaviour(step_s=0.005)
KEYS = "alice:sk-a\nalice:sk-a2\nbob:sk-b\nops:sk-o admin\n"
Task = asyncio.Task[httpx.Response]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def begun(whole: Whole, key: str = "", **body: Any) -> tuple[Task, list[dict[str, Any]]]:
    """A request that runs, and the rows of its completions."""
    sent = {"prompt": [5] * 20, "max_tokens": 1500, "ignore_eos": True, **body}
    before = {row["id"] for row in await rows(whole)}
    task = asyncio.create_task(whole.http.post("/v1/completions", json=sent, headers=bearer(key)))
    while True:
        found = [row for row in await rows(whole) if row["id"] not in before]
        if found and all(row["num_generated_tokens"] for row in found):
            return task, found
        await asyncio.sleep(0.005)


async def rows(whole: Whole) -> list[dict[str, Any]]:
    answer = await whole.http.get("/stats", headers=bearer("sk-o"))
    found: list[dict[str, Any]] = answer.json()["requests"]["rows"]
    return found


async def abort(whole: Whole, name: str, key: str = "") -> httpx.Response:
    path = f"/requests/{name.replace('#', '%23')}/abort"
    return await whole.http.post(path, headers=bearer(key))


@aio
async def test_whoever_waits_gets_what_there_is(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        task, (row,) = await begun(whole)
        other, _ = await begun(whole, max_tokens=100)
        answer = await abort(whole, row["id"])
        assert answer.status_code == 200 and answer.json() == {"aborted": [row["id"]]}
        found = (await task).json()
        assert found["choices"][0]["finish_reason"] == "abort"
        assert 0 < found["usage"]["completion_tokens"] < 1500
        assert (await other).json()["choices"][0]["finish_reason"] == "length"
        await whole.is_idle()
        error = error_of(await abort(whole, row["id"]), 404)
        assert error["code"] == "request_not_found"


@pytest.mark.parametrize("which", ["answer", "first", "fork"])
@aio
async def test_every_name_of_a_request(tokenizer: Tokenizer, which: str) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        prompts = [[5] * 20, [6] * 20]
        task, found = await begun(whole, prompt=prompts, n=2)
        names = sorted(row["id"] for row in found)
        assert len(names) == 4
        name = {"answer": names[0].rpartition("-")[0], "first": names[0], "fork": names[1]}[which]
        ended = (await abort(whole, name)).json()["aborted"]
        assert ended == ([names[0], names[2]] if which == "answer" else [names[0]])
        if which != "answer":
            await abort(whole, names[2])
        reasons = [choice["finish_reason"] for choice in (await task).json()["choices"]]
        assert reasons == ["abort"] * 4


@aio
async def test_a_stream_ends_in_good_order(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        task, (row,) = await begun(whole, stream=True)
        assert (await abort(whole, row["id"])).status_code == 200
        last = events_of((await task).content)[-1]
        assert last["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("name", ["x", "cmpl-%3Cscript%3E", "a/b", ".*", "%23", "cmpl"])
@aio
async def test_unknown_ids(tokenizer: Tokenizer, name: str) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        task, _ = await begun(whole)
        error_of(await whole.http.post(f"/requests/{name}/abort"), 404)
        task.cancel()


@pytest.fixture
def guarded(tmp_path: Path) -> Callable[..., ServerConfig]:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    return lambda **options: ServerConfig(
        security=SecurityConfig(api_key_file=str(file), **options)
    )


@pytest.mark.parametrize(
    ("key", "status"), [("", 401), ("m", 401), ("sk-b", 403), ("sk-a2", 200), ("sk-o", 200)]
)
def test_whose_request_it_is(
    tokenizer: Tokenizer, guarded: Callable[..., ServerConfig], key: str, status: int
) -> None:
    @aio
    async def scenario() -> None:
        config = guarded(metrics_key="m")
        async with whole_server(tokenizer, SLOW, config=config) as whole:
            task, (row,) = await begun(whole, "sk-a")
            answer = await abort(whole, row["id"], key)
            assert answer.status_code == status, answer.text
            if status == 200:
                assert (await task).json()["choices"][0]["finish_reason"] == "abort"
                assert whole.parts.state.owners == {}
            else:
                error_of(answer, status)
                assert not task.done()
                task.cancel()

    scenario()


@pytest.mark.parametrize("isolation", ["none", "key"])
@pytest.mark.parametrize("metrics_key", [None, "m"])
def test_an_admin_sees_everything(
    tokenizer: Tokenizer,
    guarded: Callable[..., ServerConfig],
    isolation: str,
    metrics_key: str | None,
) -> None:
    @aio
    async def scenario() -> None:
        config = guarded(cache_isolation=isolation, metrics_key=metrics_key)
        async with whole_server(tokenizer, SLOW, config=config) as whole:
            for path in ("/stats", "/stats/blocks"):
                answer = await whole.http.get(path, headers=bearer("sk-o"))
                assert answer.status_code == 200
            metrics = await whole.http.get("/metrics", headers=bearer("sk-o"))
            assert metrics.status_code == (401 if metrics_key else 200)

    scenario()
