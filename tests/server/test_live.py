"""``/stats/stream``: a picture that stays true, for any number of readers, at the cost of one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from support.aio import aio, eventually
from support.echo_engine import NUM_BLOCKS, Behaviour
from support.http_client import error_of
from support.supervised import supervised
from support.whole_server import Whole, whole_server

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.core.observe_config import ObservabilityConfig
from octavo.metrics.live import Picture
from octavo.server.live import hub as hub_module
from octavo.server.live.hub import Hub
from octavo.tokenizer.tokenizer import Tokenizer

SLOW = Behaviour(step_s=0.005, max_num_seqs=2)
Events = AsyncGenerator[bytes, None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_SHORTEST_S", 0.01)
    monkeypatch.setattr(hub_module, "_LONGEST_S", 0.05)


class Reader:
    """Takes in events."""

    def __init__(self, events: Events) -> None:
        self.picture = Picture()
        self.seen: list[str] = []
        self.events = events

    async def take(self) -> str:
        """The next event that says something."""
        raw = await asyncio.wait_for(anext(self.events), 10)
        while raw.startswith(b":"):
            raw = await asyncio.wait_for(anext(self.events), 10)
        name, data = raw.decode().removesuffix("\n\n").split("\n")
        self.seen.append(name.removeprefix("event: "))
        self.picture.apply(self.seen[-1], json.loads(data.removeprefix("data: ")))
        return self.seen[-1]

    async def until(self, condition: Any) -> None:
        while not condition(self.picture.state):
            await self.take()

    @property
    def rows(self) -> dict[str, Any]:
        found: dict[str, Any] = self.picture.state["requests"]["rows"]
        return found


def hub_of(whole: Whole) -> Hub:
    found: Hub = whole.parts.app.state.hub
    return found


@asynccontextmanager
async def reader(hub: Hub) -> AsyncIterator[Reader]:
    async with aclosing(hub.events()) as events:
        yield Reader(events)


def completion(whole: Whole, **body: Any) -> asyncio.Task[httpx.Response]:
    body = {"prompt": [5] * 20, "max_tokens": 100, "ignore_eos": True, **body}
    return asyncio.create_task(whole.http.post("/v1/completions", json=body))


async def agrees_with_stats(whole: Whole, picture: Picture) -> None:
    """At rest, the picture is what the other endpoints answer."""
    stats = (await whole.http.get("/stats")).json()
    state = picture.state
    for name in ("kv_cache", "memory", "since_start", "status", "model_names"):
        assert state[name] == stats[name], name
    assert {**state["requests"], "rows": []} == stats["requests"]
    blocks = (await whole.http.get("/stats/blocks")).json()
    for name, code in (("states", "B"), ("tokens", "B"), ("ref_counts", "H")):
        assert picture.columns[name] == array(code, base64.b64decode(blocks[name])), name
    assert list(picture.state_names) == blocks["state_names"]


@aio
async def test_the_picture_stays_true(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW) as whole, reader(hub_of(whole)) as r:
        assert await r.take() == "snapshot"
        assert r.picture.num_blocks == NUM_BLOCKS and r.rows == {}
        tasks = [completion(whole, max_tokens=60 + 40 * k) for k in range(4)]
        most = 0
        while len(r.seen) < 5 or r.picture.state["requests"]["open"]:
            await r.take()
            running = {name for name, row in r.rows.items() if row["state"] == "running"}
            assert set(r.picture.tables) == running
            for name, table in r.picture.tables.items():
                row = r.rows[name]
                assert row["num_blocks"] == len(table) == len(set(table))
                assert row["num_wasted_slots"] == len(table) * 16 - row["num_computed_tokens"]
                for block in table:
                    shown = r.picture.block(block)
                    assert shown.state.startswith("used") and name in r.picture.holders(block)
                    assert shown.ref_count == len(r.picture.holders(block))
            most = max(most, len(running))
        assert most == 2
        assert set(r.seen[1:]) == {"delta"}
        await asyncio.gather(*tasks)
        await r.take()
        await agrees_with_stats(whole, r.picture)
        block = next(b for b in range(NUM_BLOCKS) if r.picture.block(b).state == "cached")
        assert len(r.picture.block(block).hash) == 8
        assert 0 < r.picture.block(block).changed_s < r.picture.state["clock_s"]


@aio
async def test_samples_become_a_history(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.live.samples.PERIOD_S", 0.05)
    async with whole_server(tokenizer, SLOW) as whole:
        async with reader(hub_of(whole)) as r:
            await r.take()
            task = completion(whole, max_tokens=80)
            await r.until(
                lambda state: state["since_start"]["counters"]["generation_tokens_total"] == 80
            )
            await task
            for _ in range(15):
                await r.take()
            history = r.picture.history
            assert len({len(column) for column in history.values()}) == 1
            assert max(history["generated_tokens_per_s"]) > 50
            assert max(history["running"]) == 1
            assert any(value and value > 0 for value in history["first_token_s_p50"])
            assert any(0.001 < (value or 0) < 1 for value in history["inter_token_s_p99"])
            assert max(history["forward_share"]) > 0
        async with reader(hub_of(whole)) as other:
            await other.take()
            kept = other.picture.history
            count = len(history["time"])
            assert kept["time"][:count] == history["time"]
            assert kept["running"][-1] is None, "a gap while nobody looked"


@aio
async def test_many_readers_cost_one_and_none_costs_nothing(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer) as whole:
        asked: list[str] = []
        link, send = whole.parts.link, whole.parts.link.send

        async def counted(message: Any) -> None:
            asked.append(type(message).__name__)
            await send(message)

        engine = whole.parts.state.engine
        engine._inspections._send = link.send = counted
        hub = hub_of(whole)
        assert asked == []
        streams = [hub.events() for _ in range(20)]
        readers = [Reader(events) for events in streams]
        for _ in range(5):
            await asyncio.gather(*(r.take() for r in readers))
        assert 5 <= asked.count("Watch") <= 8
        assert all(r.picture.state == readers[0].picture.state for r in readers)
        for events in streams:
            await events.aclose()
        assert asked[-1] == "Unwatch" and asked.count("Unwatch") == 1
        count = len(asked)
        await asyncio.sleep(0.1)
        assert len(asked) == count
        async with reader(hub) as again:
            assert await again.take() == "snapshot"


@aio
async def test_a_reader_that_sleeps_gets_a_snapshot_and_misses_nothing(
    tokenizer: Tokenizer,
) -> None:
    async with whole_server(tokenizer) as whole:
        hub = hub_of(whole)
        async with reader(hub) as sleepy, reader(hub) as awake:
            await sleepy.take()
            await awake.take()
            task = completion(whole)
            await awake.until(lambda state: state["since_start"]["finished"]["length"] == 1)
            await task
            await awake.take()
            assert await sleepy.take() == "snapshot"
            await awake.take()
            await sleepy.until(lambda state: state["time"] >= awake.picture.state["time"])
            await agrees_with_stats(whole, sleepy.picture)


@aio
async def test_it_tells_of_an_engine_that_dies_and_of_the_next_one(tokenizer: Tokenizer) -> None:
    async with supervised(tokenizer, Behaviour(step_s=0.01)) as (http, parts, _):
        hub: Hub = parts.app.state.hub
        async with reader(hub) as r:
            await r.take()
            body = {"prompt": [5] * 20, "max_tokens": 1500, "ignore_eos": True}
            task = asyncio.create_task(http.post("/v1/completions", json=body))
            await r.until(lambda state: state["requests"]["running"] == 1)
            first = r.picture.state["engine"]["pid"]
            os.kill(first, signal.SIGKILL)
            await r.until(lambda state: state["status"] == "restarting")
            assert "another engine is being started" in r.picture.state["problem"]
            async with reader(hub) as newcomer:
                await newcomer.take()
                assert newcomer.picture.state["status"] == "restarting"
            assert (await task).status_code == 503
            await r.until(lambda state: state["status"] == "ok")
            assert r.seen[-1] == "snapshot"
            assert r.picture.state["engine"]["pid"] != first and "problem" not in r.picture.state
            assert r.rows == {} and r.picture.tables == {}


@aio
async def test_it_ends_with_the_server(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer) as whole, reader(hub_of(whole)) as r:
        await r.take()
        await whole.parts.state.engine.shutdown()
        with pytest.raises(StopAsyncIteration):
            while True:
                await r.take()
        assert r.picture.state["status"] == "dead"


@pytest.mark.parametrize("shows_text", [False, True])
def test_text_is_shown_only_by_a_server_that_is_told_to(
    tokenizer: Tokenizer, shows_text: bool
) -> None:
    config = ServerConfig(observability=ObservabilityConfig(dashboard_show_text=shows_text))

    @aio
    async def scenario() -> None:
        async with (
            whole_server(tokenizer, SLOW, config=config) as whole,
            reader(hub_of(whole)) as r,
        ):
            task = completion(whole, prompt="a secret of mine", max_tokens=400)
            await r.until(
                lambda state: any(
                    row.get("num_generated_tokens", 0) > 8
                    for row in state.get("requests", {}).get("rows", {}).values()
                )
            )
            (row,) = r.rows.values()
            assert (row.get("prompt_head") == "a secret of mine") == shows_text
            assert ("a secr" in row.get("output_tail", "")) == shows_text
            assert ("secret" in json.dumps(r.picture.state)) == shows_text
            task.cancel()

    scenario()


@aio
async def test_it_says_whose_requests_they_are(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW, config=guarded()) as whole:
        whole.http.headers["Authorization"] = "Bearer k"
        async with reader(hub_of(whole)) as r:
            await r.take()
            task = completion(whole, n=2)
            await r.until(lambda state: len(state["requests"]["rows"]) == 2)
            clients = {row["client"] for row in r.rows.values()}
            assert len(clients) == 1 and clients.pop().startswith("key-")
            task.cancel()


def guarded(**options: Any) -> ServerConfig:
    return ServerConfig(security=SecurityConfig(api_key=("k",), **options))


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (guarded(), {"": 401}),
        (guarded(metrics_key="m"), {"": 401, "k": 401}),
        (guarded(cache_isolation="key"), {"": 401, "k": 403}),
    ],
    ids=["keys", "metrics key", "isolated"],
)
def test_who_may_not_look(
    tokenizer: Tokenizer, config: ServerConfig, status: dict[str, int]
) -> None:
    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer, config=config) as whole:
            for key, expected in status.items():
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                error_of(await whole.http.get("/stats/stream", headers=headers), expected)

    scenario()


@aio
async def test_over_http(tokenizer: Tokenizer) -> None:
    """Events come as they happen, and a reader that leaves is noticed."""
    async with whole_server(tokenizer, config=guarded()) as whole:
        config = uvicorn.Config(whole.parts.app, port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(headers={"Authorization": "Bearer k"}) as http:
            url = f"http://127.0.0.1:{port}/stats/stream"
            async with http.stream("GET", url) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = answer.aiter_lines()
                assert await anext(lines) == "event: snapshot"
                data = json.loads((await anext(lines)).removeprefix("data: "))
                assert data["state"]["status"] == "ok"
                assert await anext(lines) == "" and await anext(lines) == "event: delta"
        await eventually(lambda: hub_of(whole)._task is None)
        server.should_exit = True
        await task
