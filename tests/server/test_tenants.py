"""Tenants share a server and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.aio import aio
from support.echo_engine import Behaviour, engine_thread
from support.fake_engine import MODEL, Script, served
from support.http_client import events_of

from octavo import assemble
from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import CacheConfig, EngineConfig, ModelConfig, ServerConfig
from octavo.front.async_engine import AsyncEngine
from octavo.server.access.control import Access
from octavo.server.access.tenant import TenantEngine
from octavo.server.app import create_app
from octavo.server.state import ServerState
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer

KEYS = "alice:sk-a\nalice:sk-a2\nbob:sk-b\nal:sk-d\nsk-c\n"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., ServerConfig]:
    file = tmp_path / "keys"
    file.write_text(KEYS)

    def make(isolation: Any, **limits: int) -> ServerConfig:
        security = SecurityConfig(api_key_file=str(file), cache_isolation=isolation)
        return ServerConfig(security=security, limits=LimitsConfig(**limits))

    return make


Ask = Callable[..., Awaitable[int]]


def asker(http: httpx.AsyncClient) -> Ask:
    """Asks as the holder of a key; returns how many tokens of the prompt came from the cache."""

    async def ask(key: str, path: str = COMPLETIONS, *, stream: bool = False, **body: Any) -> int:
        sent = {"max_tokens": 2, "stream": stream, **body}
        if stream:
            sent["stream_options"] = {"include_usage": True}
        answer = await http.post(path, json=sent, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        last = events_of(answer.content)[-1] if stream else answer.json()
        cached: int = last["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    return ask


def with_engine(tokenizer: Tokenizer, config: ServerConfig, scenario: Any) -> None:
    async def main() -> None:
        with engine_thread(Behaviour()) as link:
            async with served(Script(), tokenizer=tokenizer, link=link, config=config) as parts:
                transport = httpx.ASGITransport(parts.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                    await scenario(asker(http))

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_no_hits_across_keys(
    tokenizer: Tokenizer, config: Callable[..., ServerConfig], path: str, stream: bool
) -> None:
    body: dict[str, Any] = {"prompt": [5] * 40}
    if path == CHAT:
        body = {"messages": [{"role": "user", "content": "hi there " * 4}], "model": MODEL}

    async def scenario(ask: Ask) -> None:
        async def cached(key: str, **more: Any) -> bool:
            return await ask(key, path, stream=stream, **body, **more) > 0

        assert not await cached("sk-a")
        assert await cached("sk-a")
        assert await cached("sk-a2")  # another key of the same tenant
        assert not await cached("sk-b")
        assert not await cached("sk-c")
        assert await cached("sk-b")
        assert await cached("sk-c")
        # Salts of their own divide tenants further, and none of them is a way to another's.
        assert not await cached("sk-b", cache_salt="x")
        assert await cached("sk-b", cache_salt="x")
        assert not await cached("sk-a", cache_salt="x")
        assert not await cached("sk-c", cache_salt="alice\n")
        assert not await cached("sk-c", cache_salt="alice")

    with_engine(tokenizer, config("key"), scenario)


def test_without_isolation_keys_share(
    tokenizer: Tokenizer, config: Callable[..., ServerConfig]
) -> None:
    async def scenario(ask: Ask) -> None:
        assert await ask("sk-a", prompt=[5] * 40) == 0
        assert await ask("sk-b", prompt=[5] * 40) == 32
        assert await ask("sk-b", prompt=[5] * 40, cache_salt="x") == 0

    for limits in ({}, {"tokens_per_minute_per_key": 1000}):
        with_engine(tokenizer, config("none", **limits), scenario)


@aio
async def test_salts_tell_nothing_of_keys_and_cannot_be_forged(
    tokenizer: Tokenizer, config: Callable[..., ServerConfig]
) -> None:
    script = Script()
    async with served(script, tokenizer=tokenizer, config=config("key")) as parts:
        transport = httpx.ASGITransport(parts.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            for key in ("sk-a", "sk-a2", "sk-b", "sk-c", "sk-d"):
                for salt in ("", "s", "\ns", "alice\ns", "ice", "ice\ns"):
                    await asker(http)(key, prompt=[5], cache_salt=salt)
        salts = [submit.cache_salt for submit in script.submits]
        assert len(set(salts)) == len(salts) - 6  # two keys are one tenant's
        assert not any("sk-" in salt for salt in salts)


def test_whatever_takes_a_salt_gets_the_tenants_own() -> None:
    """A new kind of request at the engine has to be salted and charged here, too."""
    for name, method in inspect.getmembers(AsyncEngine, inspect.isfunction):
        if not name.startswith("_") and "cache_salt" in inspect.signature(method).parameters:
            assert name in vars(TenantEngine), f"TenantEngine lacks {name}"
            assert "on_tokens" in inspect.signature(method).parameters


PROMPT_TOKENS = 120
ROUNDS = 3


@pytest.mark.real_model
def test_a_second_key_learns_nothing_from_the_clock(config: Callable[..., ServerConfig]) -> None:
    """What one key has sent is quick to answer for that key, and as slow as ever for another."""
    server_config = config("key")
    engine_config = EngineConfig(
        model=ModelConfig(max_model_len=1024), cache=CacheConfig(num_blocks=600)
    )

    async def main() -> None:
        front = assemble.read_front(engine_config.model)
        _, link = assemble.start_engine_thread(engine_config)
        engine = assemble.make_async_engine(link, front, MODEL)
        await engine.start()
        state = ServerState(
            engine=engine,
            config=server_config,
            model_names=(MODEL,),
            generation_defaults={},
            chat_template=ChatTemplate(None, front.tokenizer.special_tokens),
            access=Access(server_config.security, server_config.limits),
        )
        transport = httpx.ASGITransport(create_app(state))
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", timeout=60
            ) as http:
                ask = asker(http)

                async def seconds(key: str, number: int) -> float:
                    prompt = [1000 + number, *range(2000, 2000 + PROMPT_TOKENS)]
                    began = time.perf_counter()
                    await ask(key, prompt=prompt, max_tokens=1)
                    return time.perf_counter() - began

                await seconds("sk-a", 0)  # what only the first request of all pays
                times = [
                    [await seconds(key, number) for key in ("sk-a", "sk-a", "sk-b")]
                    for number in range(1, ROUNDS + 1)
                ]
        finally:
            await engine.shutdown()
        cold, warm, other = map(statistics.median, zip(*times, strict=True))
        print(f"cold {cold:.3f} s, warm {warm:.3f} s, another key {other:.3f} s")
        assert warm < 0.5 * cold  # the cache saves most of the work
        assert other > 0.7 * cold

    asyncio.run(main())
