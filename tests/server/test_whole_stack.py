"""HTTP over the real front end, link, step loop, scheduler and KV bookkeeping: no model alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from support.echo_engine import MAX_MODEL_LEN, NUM_BLOCKS, Behaviour, echo_of, engine_thread
from support.fake_engine import MODEL, Script, Served, served
from support.http_client import events_of

from octavo.tokenizer.tokenizer import Tokenizer


async def eventually_idle(client: httpx.AsyncClient) -> None:
    """Waits until the engine reports that nothing runs, waits or holds a block."""
    wanted = [
        f'octavo:num_requests_running{{model_name="{MODEL}"}} 0',
        f'octavo:num_requests_waiting{{model_name="{MODEL}"}} 0',
        f'octavo:kv_cache_usage_perc{{model_name="{MODEL}"}} 0',
    ]
    for _ in range(500):
        text = (await client.get("/metrics")).text
        lines = [line.removesuffix(".0") for line in text.splitlines()]
        if all(line in lines for line in wanted):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(text)


def run(tokenizer: Tokenizer, scenario: Any, behaviour: Behaviour) -> None:
    async def main() -> None:
        with engine_thread(behaviour) as link:
            async with served(Script(), tokenizer=tokenizer, link=link) as parts:
                transport = httpx.ASGITransport(parts.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                    await scenario(client, parts)

    asyncio.run(main())


def test_a_hundred_clients_at_once(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, parts: Served) -> None:
        async def ask(number: int) -> None:
            prompt = [number % 300 + 3] * (number % 7) + list(range(10, 20 + number))
            length = 1 + number % 40
            body = {"prompt": prompt, "max_tokens": length, "ignore_eos": True}
            body |= {"return_token_ids": True, "stream": bool(number % 2), "n": 1 + number % 3}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200
            found: dict[int, list[int]] = {}
            chunks = events_of(response.content) if number % 2 else [response.json()]
            for chunk in chunks:
                for choice in chunk["choices"]:
                    found.setdefault(choice["index"], []).extend(choice["token_ids"])
            assert found == {index: echo_of(prompt, length) for index in range(1 + number % 3)}

        async def leave(number: int) -> None:
            body = {"prompt": [number + 5, 7], "max_tokens": 2000, "ignore_eos": True}
            with_timeout = client.post("/v1/completions", json=body)
            try:
                await asyncio.wait_for(with_timeout, 0.05)
            except TimeoutError:
                return
            raise AssertionError("it was to take longer")

        await asyncio.gather(*map(ask, range(100)), *map(leave, range(10)))
        assert parts.state.engine.num_open == 0
        assert (await client.get("/health")).status_code == 200
        await eventually_idle(client)

    run(tokenizer, scenario, Behaviour(max_num_seqs=32, step_s=0.001))


def test_the_second_time_the_prompt_is_cached(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, _parts: Served) -> None:
        body = {"prompt": [5] * 100, "max_tokens": 3}
        for cached in (0, 96):
            usage = (await client.post("/v1/completions", json=body)).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": cached}
        other = {**body, "cache_salt": "another tenant"}
        usage = (await client.post("/v1/completions", json=other)).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}, "n": 2}
        raw = (await client.post("/v1/completions", json=stream)).content
        details = events_of(raw)[-1]["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 96}

    run(tokenizer, scenario, Behaviour())


def test_the_longest_requests(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, _parts: Served) -> None:
        assert NUM_BLOCKS * 16 > MAX_MODEL_LEN
        body: dict[str, Any] = {"prompt": [5] * (MAX_MODEL_LEN - 1), "max_tokens": 1}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        body["prompt"].append(5)
        assert (await client.post("/v1/completions", json=body)).status_code == 400
        body = {"prompt": [5], "max_tokens": MAX_MODEL_LEN - 1}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN

    run(tokenizer, scenario, Behaviour())


def test_a_bug_in_the_executor_is_no_hang(tokenizer: Tokenizer) -> None:
    async def scenario(client: httpx.AsyncClient, _parts: Served) -> None:
        body = {"prompt": [5], "max_tokens": 50, "stream": True}
        raw = (await client.post("/v1/completions", json=body)).text
        last = json.loads(raw.split("\n\n")[-2].removeprefix("data: "))
        assert last["error"]["code"] == "engine_dead"
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json=body)).status_code == 503

    run(tokenizer, scenario, Behaviour(fail_at_step=5))
