"""The engine as one tenant sees it: every request is salted and charged here, and nowhere else.

Endpoints get it from `octavo.server.state.state_of` in place of the engine, and need not know.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeAlias, cast

from octavo.core.errors import EngineDead, EngineDraining, RequestError
from octavo.core.params import SamplingParams
from octavo.core.types import RequestId, TokenId
from octavo.front.async_engine import AsyncEngine
from octavo.front.outputs import CompletionDelta, RequestOutput
from octavo.server.access.limits import Account

_Stream: TypeAlias = AsyncGenerator[list[CompletionDelta], None]


class TenantEngine:
    """Answers whatever an `AsyncEngine` answers; requests are those of ``account``.

    Args:
        owners: names of accounts by request id; this account's are entered while they are in
            flight.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        account: Account,
        owners: dict[RequestId, str],
        *,
        isolates_caches: bool,
    ) -> None:
        self._engine = engine
        self._account = account
        self._owners = owners
        self._isolates_caches = isolates_caches

    def __getattr__(self, name: str) -> Any:
        """What concerns no tenant is the engine's own."""
        return getattr(self._engine, name)

    async def generate(
        self, prompt_token_ids: Sequence[TokenId], params: SamplingParams, **options: Any
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """See `AsyncEngine.generate`."""
        own = self._own(options)
        with self._owned(own["request_id"]), self._charged(len(prompt_token_ids)) as bill:
            stream = self._engine.generate(prompt_token_ids, params, **own, on_tokens=bill.add)
            async with aclosing(cast(_Stream, stream)) as deltas:
                async for news in deltas:
                    yield news

    async def complete(
        self, prompt_token_ids: Sequence[TokenId], params: SamplingParams, **options: Any
    ) -> RequestOutput:
        """See `AsyncEngine.complete`."""
        own = self._own(options)
        with self._owned(own["request_id"]), self._charged(len(prompt_token_ids)) as bill:
            return await self._engine.complete(prompt_token_ids, params, **own, on_tokens=bill.add)

    def _own(self, options: dict[str, Any]) -> dict[str, Any]:
        options = {**options, "request_id": options.get("request_id") or uuid.uuid4().hex}
        if not self._isolates_caches:
            return options
        # No name has a line end, so that no salt of one tenant can look like that of another.
        salt = f"{self._account.principal.name}\n{options.get('cache_salt') or ''}"
        return {**options, "cache_salt": salt}

    @contextmanager
    def _owned(self, request_id: RequestId) -> Iterator[None]:
        if request_id in self._owners:  # the engine will refuse it
            yield
            return
        self._owners[request_id] = self._account.principal.name
        try:
            yield
        finally:
            del self._owners[request_id]

    @contextmanager
    def _charged(self, num_prompt_tokens: int) -> Iterator[_Bill]:
        bill = _Bill(self._account)
        self._account.charge(num_prompt_tokens)
        is_lost = False
        try:
            yield bill
        except (RequestError, EngineDraining, EngineDead):
            is_lost = not bill.num_tokens
            raise
        finally:
            # What never left the line cost nothing, whoever gave up; what a deadline or a client
            # cut short was computed.
            if is_lost or not bill.has_begun:
                self._account.charge(-num_prompt_tokens)


class _Bill:
    """Generated tokens of one request."""

    __slots__ = ("_account", "has_begun", "num_tokens")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.has_begun = False
        self.num_tokens = 0

    def add(self, num_tokens: int) -> None:
        """So many more have been generated; 0 for a prompt that begins to be computed."""
        self.has_begun = True
        self.num_tokens += num_tokens
        self._account.charge(num_tokens)
