"""The counters agree with what clients saw, whatever they asked for and however they left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from support.aio import aio
from support.echo_engine import Behaviour
from support.exposition import check_histograms, check_monotone
from support.http_client import events_of
from support.supervised import supervised
from support.whole_server import Whole, whole_server

from octavo.tokenizer.tokenizer import Tokenizer

PATHS = ("/v1/completions", "/v1/chat/completions")


class Seen:
    """What clients were told, added up."""

    def __init__(self) -> None:
        self.usage: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.statuses: Counter[tuple[str, str]] = Counter()
        self.max_tokens: list[int] = []

    def add(self, answer: dict[str, Any], choices: list[dict[str, Any]]) -> None:
        usage = answer["usage"]
        self.usage["prompt"] += usage["prompt_tokens"]
        self.usage["generated"] += usage["completion_tokens"]
        self.usage["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
        self.ends.update(choice["finish_reason"] for choice in choices)


async def ask(whole: Whole, rng: random.Random, seen: Seen, shared: list[int]) -> None:
    path = rng.choice(PATHS)
    body: dict[str, Any] = {"max_tokens": rng.randrange(1, 30), "ignore_eos": True}
    body["n"] = rng.choice([1, 1, 3])
    if path == PATHS[0]:
        tail = [rng.randrange(3, 300) for _ in range(rng.randrange(1, 30))]
        body["prompt"] = shared[: rng.randrange(60)] + tail
    else:
        body["messages"] = [{"role": "user", "content": "word " * rng.randrange(1, 30)}]
    if rng.random() < 0.3:
        body["stop"] = ["e", "a"]
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    seen.max_tokens.append(body["max_tokens"])
    answer = await whole.http.post(path, json=body)
    seen.statuses[path, str(answer.status_code)] += 1
    assert answer.status_code == 200
    if "stream" in body:
        events = events_of(answer.content)
        choices = [choice for event in events for choice in event["choices"]]
        seen.add(events[-1], [choice for choice in choices if choice["finish_reason"]])
    else:
        seen.add(answer.json(), answer.json()["choices"])


async def refuse(whole: Whole, rng: random.Random, seen: Seen) -> None:
    path, body, status = rng.choice(
        [
            (PATHS[0], {"prompt": "a", "temperature": -1}, 400),
            (PATHS[0], {"prompt": [5] * 5000}, 400),
            (PATHS[1], {"messages": [], "model": "other"}, 404),
        ]
    )
    answer = await whole.http.post(path, json=body)
    assert answer.status_code == status
    seen.statuses[path, str(status)] += 1


@pytest.mark.parametrize("seed", range(6))
def test_counters_are_what_clients_saw(tokenizer: Tokenizer, seed: int) -> None:
    @aio
    async def scenario() -> None:
        rng, seen = random.Random(seed), Seen()
        shared = [rng.randrange(3, 300) for _ in range(60)]
        behaviour = Behaviour(max_num_seqs=rng.choice([2, 8, 64]))
        async with whole_server(tokenizer, behaviour) as whole:
            before = await whole.metrics()
            for _ in range(3):
                works = [ask(whole, rng, seen, shared) for _ in range(12)]
                works += [refuse(whole, rng, seen) for _ in range(2)]
                await asyncio.gather(*works)
                after = await whole.metrics()
                check_monotone(before, after)
                before = after
            await whole.is_idle()
            found = await whole.metrics()
        check_histograms(found)
        assert found["prompt_tokens_total",] == seen.usage["prompt"]
        assert found["generation_tokens_total",] == seen.usage["generated"]
        # Siblings fork, or are admitted as first ones are when the first has ended already.
        assert found["prefix_cache_hits_total",] >= seen.usage["cached"]
        assert found["prefix_cache_queries_total",] >= seen.usage["prompt"]
        for reason in ("stop", "length"):
            assert found["request_success_total", reason] == seen.ends[reason]
        num_ends = seen.ends.total()
        for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds"):
            assert found[f"{name}_count",] == num_ends, name
        for name in ("queue", "prefill", "decode", "inference"):
            assert found[f"request_{name}_time_seconds_count",] == num_ends, name
        gaps = seen.usage["generated"] - num_ends
        assert found["inter_token_latency_seconds_count",] == gaps
        assert found["request_generation_tokens_sum",] == seen.usage["generated"]
        assert found["request_params_max_tokens_sum",] == sum(seen.max_tokens)
        for (path, status), count in seen.statuses.items():
            assert found["http_requests_total", "POST", path, status] == count

    scenario()


@aio
async def test_cached_tokens_are_exactly_those_of_usages(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, Behaviour(max_num_seqs=4)) as whole:
        rng, cached, prompts = random.Random(1), 0, 0
        shared = [rng.randrange(3, 300) for _ in range(100)]

        async def one() -> None:
            nonlocal cached, prompts
            body = {"prompt": shared[: rng.randrange(1, 100)], "max_tokens": 3}
            usage = (await whole.http.post(PATHS[0], json=body)).json()["usage"]
            prompts += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]

        for _ in range(4):
            await asyncio.gather(*(one() for _ in range(10)))
        found = await whole.metrics()
    assert cached > 500, "the cache was used"
    assert found["prefix_cache_hits_total",] == cached
    assert found["prefix_cache_queries_total",] == prompts
    assert found["prompt_tokens_computed_total",] == prompts - cached


@aio
async def test_clients_that_leave_are_aborts_and_hold_nothing(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer, Behaviour(step_s=0.002)) as whole:
        body = {"prompt": [5, 6], "max_tokens": 2000, "ignore_eos": True}
        for stream in (False, True):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    whole.http.post(PATHS[0], json={**body, "stream": stream}), 0.05
                )
        await whole.is_idle()
        found = await whole.metrics()
    assert found["request_success_total", "abort"] == 2
    assert found["num_requests_running",] == 0


@aio
async def test_counters_survive_an_engine_that_is_killed(tokenizer: Tokenizer) -> None:
    async with supervised(tokenizer, Behaviour(step_s=0.002)) as (http, parts, supervisor):
        whole = Whole(parts, http)
        body = {"prompt": [5] * 40, "max_tokens": 4, "ignore_eos": True}
        assert (await http.post(PATHS[0], json=body)).status_code == 200
        before = await whole.metrics()
        doomed = asyncio.create_task(http.post(PATHS[0], json={**body, "max_tokens": 1900}))
        while whole.value("num_requests_running") == 0:
            await asyncio.sleep(0.01)
        supervisor._process.kill("for a test")
        assert (await doomed).status_code == 503
        gone = await whole.metrics()
        assert gone["engine_up",] == gone["kv_cache_blocks", "used"] == 0
        assert (await http.get("/stats")).status_code == 503
        while not parts.state.engine.is_alive:
            await asyncio.sleep(0.02)
        assert (await http.post(PATHS[0], json=body)).status_code == 200
        after = await whole.metrics()
        check_monotone(before, after)
        assert after["engine_up",] == after["engine_restarts_total",] == 1
        assert after["request_success_total", "error"] == 1
        assert after["request_success_total", "length"] == 2
        assert (await http.get("/stats")).json()["engine"]["restarts"] == 1
