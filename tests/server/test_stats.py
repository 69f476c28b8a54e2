from __future__ import annotations

import asyncio
import base64
import json
from array import array
from typing import Any

import pytest
from support.aio import aio
from support.echo_engine import NUM_BLOCKS, Behaviour, make_info
from support.http_client import error_of
from support.whole_server import Whole, whole_server

from octavo import __version__
from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server import stats
from octavo.tokenizer.tokenizer import Tokenizer

SLOW = Behaviour(step_s=0.005, max_num_seqs=2)


async def running(whole: Whole, num_requests: int) -> list[asyncio.Task[Any]]:
    """Requests that take long, of which as many run as can."""
    body = {"prompt": [5] * 20, "max_tokens": 1500, "ignore_eos": True}
    tasks = [
        asyncio.create_task(whole.http.post("/v1/completions", json=body))
        for _ in range(num_requests)
    ]
    while whole.value("num_requests_running") + whole.value("num_requests_waiting") < num_requests:
        await asyncio.sleep(0.005)
    return tasks


@aio
async def test_an_idle_server(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer) as whole:
        found = (await whole.http.get("/stats")).json()
        info = make_info()
        assert found["version"] == __version__ and found["status"] == "ok"
        assert found["model_names"] == ["echo", "alias/of echo"]
        assert 0 <= found["uptime_s"] < 60
        assert found["kv_cache"]["blocks"] == {
            "total": NUM_BLOCKS,
            "used": 0,
            "cached": 0,
            "free": NUM_BLOCKS,
        }
        assert found["kv_cache"]["tokens"]["free"] == NUM_BLOCKS * 16
        assert found["memory"]["kv_cache"] == info.cache_plan.cache_bytes
        assert found["engine"]["max_num_seqs"] == info.max_num_seqs
        assert found["engine"]["step"] == -1 and found["engine"]["pid"] > 0
        assert found["requests"] == {
            "running": 0,
            "waiting": 0,
            "open": 0,
            "rows": [],
            "left_out": 0,
        }


@aio
async def test_requests_and_totals_agree(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        tasks = await running(whole, 5)
        found = (await whole.http.get("/stats")).json()
        requests, cache = found["requests"], found["kv_cache"]
        assert (requests["running"], requests["waiting"], requests["open"]) == (2, 3, 5)
        rows = requests["rows"]
        assert [row["state"] for row in rows] == ["running"] * 2 + ["waiting"] * 3
        assert all(row["id"].startswith("cmpl-") for row in rows)
        for row in rows[:2]:
            assert row["num_prompt_tokens"] == 20 and row["num_blocks"] >= 2
            assert row["num_blocks"] * 16 - row["num_computed_tokens"] == row["num_wasted_slots"]
        blocks, tokens = cache["blocks"], cache["tokens"]
        assert blocks["used"] + blocks["cached"] + blocks["free"] == blocks["total"]
        held = sum(row["num_blocks"] for row in rows)
        assert blocks["used"] <= held <= blocks["used"] + cache["shared_blocks"]
        assert tokens == {
            **{name: amount * 16 for name, amount in blocks.items()},
            "wasted": sum(row["num_wasted_slots"] for row in rows),
        }
        since = found["since_start"]
        assert since["counters"]["prefix_cache_queries_total"] == 40
        assert since["steps"] >= 1 and set(since["step_s"]) >= {"forward", "schedule"}
        few = (await whole.http.get("/stats?limit=1")).json()["requests"]
        assert len(few["rows"]) == 1 and few["left_out"] == 4
        for task in tasks:
            task.cancel()


@aio
async def test_blocks_in_both_encodings_are_those_of_the_requests(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, SLOW) as whole:
        tasks = await running(whole, 2)
        packed = (await whole.http.get("/stats/blocks")).json()
        assert packed["count"] == packed["num_blocks"] == NUM_BLOCKS and packed["first"] == 0
        codes = {"states": "B", "tokens": "B", "ref_counts": "H", "owners": "i"}
        found = {
            name: array(code, base64.b64decode(packed[name])).tolist()
            for name, code in codes.items()
        }
        assert all(len(column) == NUM_BLOCKS for column in found.values())
        assert len(packed["requests"]) == 2
        names = [packed["state_names"][code] for code in found["states"]]
        for state, count, owner, tokens in zip(
            names, found["ref_counts"], found["owners"], found["tokens"], strict=True
        ):
            assert (count > 0) == state.startswith("used") == (owner >= 0)
            assert tokens <= 16 and (tokens > 0 or not state.startswith(("cached",)))
        assert sum(name.startswith("used") for name in names) >= 2
        part = (await whole.http.get("/stats/blocks?first=2040&limit=100&encoding=array")).json()
        assert (part["first"], part["count"], part["encoding"]) == (2040, 8, "array")
        assert part["states"] == [0] * 8 and part["owners"] == [-1] * 8
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    "query",
    [
        "/stats?limit=-1",
        "/stats?limit=10001",
        "/stats?limit=x",
        "/stats/blocks?limit=0",
        "/stats/blocks?limit=1048577",
        "/stats/blocks?first=-1",
        "/stats/blocks?encoding=hex",
    ],
)
def test_bounds(tokenizer: Tokenizer, query: str) -> None:
    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer) as whole:
            error_of(await whole.http.get(query), 400)
            assert (await whole.http.get("/stats?limit=10000")).status_code == 200

    scenario()


@aio
async def test_a_step_that_takes_too_long(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_PATIENCE_S", 0.05)
    async with whole_server(tokenizer, Behaviour(step_s=0.5)) as whole:
        body = {"prompt": [5], "max_tokens": 2}
        task = asyncio.create_task(whole.http.post("/v1/completions", json=body))
        while not whole.parts.state.engine.num_open:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert error_of(await whole.http.get("/stats"), 504)["code"] == "request_timeout"
        assert (await task).status_code == 200
        assert (await whole.http.get("/stats")).status_code == 200


@aio
async def test_nobody_asking_costs_nothing(tokenizer: Tokenizer) -> None:
    """Many who ask at once are one question to the engine."""
    async with whole_server(tokenizer, Behaviour(step_s=0.05)) as whole:
        asked = 0
        link = whole.parts.link
        send = link.send

        async def counted(message: Any) -> None:
            nonlocal asked
            asked += type(message).__name__ == "Inspect"
            await send(message)

        whole.parts.state.engine._inspections._send = counted
        (task,) = await running(whole, 1)
        assert asked == 0
        answers = await asyncio.gather(*(whole.http.get("/stats") for _ in range(20)))
        assert all(answer.status_code == 200 for answer in answers)
        assert asked <= 3
        task.cancel()


def guarded(**options: Any) -> ServerConfig:
    return ServerConfig(security=SecurityConfig(api_key=("k",), **options))


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (guarded(), {"": 401, "k": 200}),
        (guarded(metrics_key="m"), {"": 401, "k": 401, "m": 200}),
        (guarded(cache_isolation="key"), {"": 401, "k": 403}),
        (guarded(cache_isolation="key", metrics_key="m"), {"": 401, "k": 401, "m": 200}),
        (ServerConfig(security=SecurityConfig(metrics_key="m")), {"": 401, "m": 200}),
    ],
    ids=["keys", "metrics key", "isolated", "isolated, metrics key", "metrics key alone"],
)
def test_who_may_ask(tokenizer: Tokenizer, config: ServerConfig, status: dict[str, int]) -> None:
    @aio
    async def scenario() -> None:
        async with whole_server(tokenizer, config=config) as whole:
            for path in ("/stats", "/stats/blocks"):
                for key, expected in status.items():
                    headers = {"Authorization": f"Bearer {key}"} if key else {}
                    answer = await whole.http.get(path, headers=headers)
                    assert answer.status_code == expected, (path, key, json.dumps(status))

    scenario()
