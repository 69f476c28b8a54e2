"""HTTP over the real front end, link, step loop, scheduler and KV bookkeeping: no model alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from support.aio import eventually
from support.echo_engine import Behaviour, engine_thread
from support.exposition import Samples, samples_of
from support.fake_engine import MODEL, Script, Served, served

from octavo.tokenizer.tokenizer import Tokenizer


class Whole:
    """A server and its client."""

    def __init__(self, parts: Served, http: httpx.AsyncClient) -> None:
        self.parts = parts
        self.http = http

    async def metrics(self) -> Samples:
        return samples_of((await self.http.get("/metrics")).text, MODEL)

    def value(self, *key: str) -> float:
        """A sample, straight from the instruments."""
        return samples_of(self.parts.state.engine.metrics.exposition().decode(), MODEL)[key]

    async def is_idle(self) -> None:
        """Returns once the engine runs nothing and holds no block."""
        await eventually(
            lambda: (
                not self.parts.state.engine.num_open
                and self.value("num_requests_running") == 0
                and self.value("num_requests_waiting") == 0
                and self.value("kv_cache_blocks", "used") == 0
            )
        )


@asynccontextmanager
async def whole_server(
    tokenizer: Tokenizer, behaviour: Behaviour | None = None, **options: Any
) -> AsyncIterator[Whole]:
    with engine_thread(behaviour or Behaviour()) as link:
        async with served(Script(), tokenizer=tokenizer, link=link, **options) as parts:
            transport = httpx.ASGITransport(parts.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                yield Whole(parts, http)
