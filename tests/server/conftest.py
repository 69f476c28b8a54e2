from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from support.fake_engine import Script, make_tokenizer
from support.http_client import Client, connected

from octavo.tokenizer.tokenizer import Tokenizer

Scenario: TypeAlias = Callable[[Client], Awaitable[Any]]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture
def within(tokenizer: Tokenizer) -> Callable[..., Any]:
    """``within(scenario, script, **options)`` runs a scenario against a fresh server."""

    def run(scenario: Scenario, script: Script | None = None, **options: Any) -> Any:
        async def main() -> Any:
            async with connected(tokenizer, script, **options) as client:
                return await scenario(client)

        return asyncio.run(main())

    return run
