"""How much a key may use, and that it is charged for what it did use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from support.fake_engine import MODEL, Script, listening
from support.http_client import Client, error_of, events_of
from support.raw_http import listening_here, post, status_of

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import ServerConfig
from octavo.core.plan import RequestDelta
from octavo.tokenizer.tokenizer import Tokenizer

Within = Callable[..., Any]
KEY, OTHER = "sk-right", "sk-other:1"
BEARER = {"Authorization": f"Bearer {KEY}"}
COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "ab", "max_tokens": 3}


def limited(**limits: int) -> ServerConfig:
    return ServerConfig(
        security=SecurityConfig(api_key=(KEY, OTHER)), limits=LimitsConfig(**limits)
    )


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_too_many_requests_a_minute(within: Within) -> None:
    clock = Clock()

    async def scenario(client: Client) -> None:
        async def ask(headers: dict[str, str] = BEARER) -> httpx.Response:
            return await client.http.post(COMPLETIONS, json=BODY, headers=headers)

        for left in (1, 0):
            answer = await ask()
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        answer = await ask()
        error = error_of(answer, 429)
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert answer.headers["retry-after"] == "30"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.headers["x-ratelimit-reset-requests"] == "1m0s"
        assert KEY not in answer.text
        assert (await client.http.get("/v1/models", headers=BEARER)).status_code == 200
        assert (await ask({"x-api-key": OTHER})).status_code == 200
        clock.now += 30
        assert (await ask()).status_code == 200

    within(scenario, config=limited(requests_per_minute_per_key=2), clock=clock)


def tokens_left(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


def test_whole_answers_and_streams_are_charged_alike(within: Within) -> None:
    async def scenario(client: Client) -> None:
        (account,) = {client.parts.state.access.account(KEY.encode())}
        assert account is not None

        def left() -> int:
            return int(dict(account.headers())[b"x-ratelimit-remaining-tokens"])

        expected = 1000
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
        for body in (BODY, {**BODY, "n": 3}, {**BODY, "prompt": ["ab", "abcd"], "n": 2}):
            for stream in (False, True):
                options = {"stream_options": {"include_usage": True}} if stream else {}
                sent = {**body, "stream": stream, **options}
                answer = await client.http.post(COMPLETIONS, json=sent, headers=BEARER)
                last = events_of(answer.content)[-1] if stream else answer.json()
                expected -= last["usage"]["total_tokens"]
                assert left() == expected
        answer = await client.http.post("/v1/chat/completions", json=chat, headers=BEARER)
        expected -= answer.json()["usage"]["total_tokens"]
        assert left() == expected
        for wrong in ({"prompt": ""}, {"prompt": "a", "n": -1}, {"prompt": "a" * 500}):
            error_of(await client.http.post(COMPLETIONS, json=wrong, headers=BEARER), 400)
        assert left() == expected

    within(scenario, config=limited(tokens_per_minute_per_key=1000), clock=Clock())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fate", ["refused", "dead", "failed"])
def test_only_what_was_computed_is_charged(within: Within, fate: str, stream: bool) -> None:
    refusal = RequestDelta(
        request_id="", error="too long", error_kind="ContextTooLong", error_param="prompt"
    )
    script = {
        "refused": Script(refuse=refusal),
        "dead": Script(die_after_steps=0),
        "failed": Script(fail_after_tokens=2),
    }[fate]

    async def scenario(client: Client) -> None:
        sent = {**BODY, "prompt": [5, 6, 7, 8], "max_tokens": 9, "stream": stream}
        answer = await client.http.post(COMPLETIONS, json=sent, headers=BEARER)
        assert "error" in answer.text
        account = client.parts.state.access.account(KEY.encode())
        assert tokens_of(account) == (994 if fate == "failed" else 1000)

    config = limited(tokens_per_minute_per_key=1000)
    within(scenario, script, config=config, clock=Clock())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begins", [True, False])
def test_what_never_left_the_line_costs_nothing(within: Within, begins: bool, stream: bool) -> None:
    async def scenario(client: Client) -> None:
        account = client.parts.state.access.account(KEY.encode())
        sent = {**BODY, "prompt": [5, 6, 7, 8], "max_tokens": 50, "timeout": 0.3, "stream": stream}
        answer = await client.http.post(COMPLETIONS, json=sent, headers=BEARER)
        assert "request_timeout" in answer.text
        assert account.num_in_flight == 0
        assert tokens_of(account) == 1000 if not begins else 950 <= tokens_of(account) < 996

    config = limited(tokens_per_minute_per_key=1000)
    within(scenario, Script(step_s=0.05 if begins else 30), config=config, clock=Clock())


def test_a_debt_has_to_be_paid(within: Within) -> None:
    clock = Clock()

    async def scenario(client: Client) -> None:
        long = {**BODY, "max_tokens": 40, "ignore_eos": True}
        answer = await client.http.post(COMPLETIONS, json=long, headers=BEARER)
        usage = answer.json()["usage"]["total_tokens"]
        assert usage > 30
        assert tokens_left(answer) == 0
        answer = await client.http.post(COMPLETIONS, json=BODY, headers=BEARER)
        error = error_of(answer, 429)
        assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
        wait_s = int(answer.headers["retry-after"])
        assert wait_s == 2 * (usage - 30 + 1)
        clock.now += wait_s - 1
        assert (await client.http.post(COMPLETIONS, json=BODY, headers=BEARER)).is_client_error
        clock.now += 1
        assert (await client.http.post(COMPLETIONS, json=BODY, headers=BEARER)).is_success

    within(scenario, config=limited(tokens_per_minute_per_key=30), clock=clock)


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_have_paid(tokenizer: Tokenizer, stream: bool) -> None:
    script = Script(step_s=0.01)
    config = limited(tokens_per_minute_per_key=10_000, max_concurrency_per_key=1)

    async def main() -> None:
        options = {"tokenizer": tokenizer, "script": script, "clock": Clock()}
        async with listening_here(config, **options, max_model_len=5000) as server:
            account = server.parts.state.access.account(KEY.encode())
            assert account is not None
            body = b'{"prompt": [5, 6, 7], "max_tokens": 4000, "stream": %b}' % (
                b"true" if stream else b"false"
            )
            _, writer = await server.connect()
            writer.write(post(COMPLETIONS, body, f"x-api-key: {KEY}"))
            while not server.parts.link.running:
                await asyncio.sleep(0.005)
            refused = await server.raw(post(COMPLETIONS, body, f"x-api-key: {KEY}"))
            assert status_of(refused) == 429
            assert b"1 requests in flight" in refused and b"retry-after: 1\r\n" in refused
            while tokens_of(account) > 9_980:
                await asyncio.sleep(0.005)
            writer.close()
            while account.num_in_flight:
                await asyncio.sleep(0.005)
            after = tokens_of(account)
            await asyncio.sleep(0.1)
            assert 9_000 < after == tokens_of(account)
            assert script.aborted

    asyncio.run(asyncio.wait_for(main(), 30))


def tokens_of(account: Any) -> int:
    return int(dict(account.headers())[b"x-ratelimit-remaining-tokens"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_fails_gives_its_place_back(within: Within, stream: bool) -> None:
    async def scenario(client: Client) -> None:
        account = client.parts.state.access.account(KEY.encode())
        assert account is not None
        for _ in range(3):
            sent = {**BODY, "stream": stream}
            await client.http.post(COMPLETIONS, json=sent, headers=BEARER)
            assert account.num_in_flight == 0

    config = limited(max_concurrency_per_key=1)
    within(scenario, Script(fail_after_tokens=2), config=config)
    within(scenario, Script(die_after_steps=1), config=config)


def test_the_clients_that_people_use(tokenizer: Tokenizer) -> None:
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 3}
    hi: Any = [{"role": "user", "content": "hi"}]
    config = limited(requests_per_minute_per_key=1)
    with listening(Script(), tokenizer, config=config, clock=Clock()) as (address, _):
        with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
            assert client.chat.completions.create(messages=hi, **options).choices
            with pytest.raises(openai.RateLimitError) as limit:
                client.chat.completions.create(messages=hi, **options)
            assert limit.value.code == "rate_limit_exceeded"
            assert limit.value.response.headers["retry-after"] == "60"
        with openai.OpenAI(base_url=f"{address}/v1", api_key="sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                client.models.list()
            assert refused.value.code == "invalid_api_key"
        with (
            anthropic.Anthropic(base_url=address, api_key="sk-wrong", max_retries=0) as other,
            pytest.raises(anthropic.AuthenticationError),
        ):
            other.messages.create(messages=hi, **options)
