"""What chat and plain completions do alike: run prompts, merge their streams, count tokens."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import ExecutorError
from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.front.outputs import CompletionDelta, DecodedLogprob, RequestOutput
from octavo.server.openai.responses import Envelope, PromptTokensDetails, Usage
from octavo.server.openai.schemas import SamplingBody
from octavo.server.state import ServerState


@dataclass(slots=True, kw_only=True)
class Job:
    """One HTTP request: prompts, and how to complete each of them.

    Choices are numbered prompt by prompt: ``prompt * n + completion``.
    """

    state: ServerState
    body: SamplingBody
    model: str
    prompts: list[list[TokenId]]
    params: SamplingParams
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, kind: str, choices: list[Any], usage: Usage | None = None) -> Envelope:
        """An answer or chunk around ``choices``."""
        return Envelope(self.id, kind, self.created, self.model, choices, usage)

    def _options(self, index: int) -> dict[str, Any]:
        return {
            "request_id": f"{self.id}-{index}",
            "priority": self.body.priority,
            "cache_salt": self.body.cache_salt,
        }

    async def complete(self) -> list[RequestOutput]:
        """All prompts' outputs, in order."""
        engine = self.state.engine
        tasks = [
            asyncio.ensure_future(engine.complete(prompt, self.params, **self._options(index)))
            for index, prompt in enumerate(self.prompts)
        ]
        try:
            outputs = list(await asyncio.gather(*tasks))
        finally:  # the first failure ends the others
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for output in outputs:
            for completion in output.outputs:
                if completion.error is not None:
                    raise ExecutorError(completion.error)
        return outputs

    async def stream(self) -> AsyncIterator[tuple[int, list[CompletionDelta]]]:
        """(prompt, what came) of all prompts as it comes."""
        engine = self.state.engine
        streams = [
            engine.generate(prompt, self.params, **self._options(index))
            for index, prompt in enumerate(self.prompts)
        ]
        async for index, deltas in _merge(streams):
            for delta in deltas:
                if delta.error is not None:
                    raise ExecutorError(delta.error)
            yield index, deltas


class UsageCounter:
    """Adds up the tokens of a stream."""

    def __init__(self, prompts: Sequence[Sequence[TokenId]]) -> None:
        self._prompt_tokens = sum(map(len, prompts))
        self._cached: dict[int, int] = {}
        self._generated = 0

    def add(self, prompt: int, deltas: Sequence[CompletionDelta]) -> None:
        """Takes in a piece of a stream."""
        for delta in deltas:
            self._generated += len(delta.token_ids)
            if delta.num_cached_tokens is not None and delta.index == 0:
                self._cached[prompt] = delta.num_cached_tokens

    @property
    def usage(self) -> Usage:
        """The sum so far."""
        return make_usage(self._prompt_tokens, self._generated, sum(self._cached.values()))


def make_usage(prompt_tokens: int, generated: int, cached: int) -> Usage:
    """A usage object."""
    return Usage(prompt_tokens, generated, prompt_tokens + generated, PromptTokensDetails(cached))


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """What whole outputs cost; each prompt counts once, however many completions it has."""
    return make_usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(c.token_ids) for output in outputs for c in output.outputs),
        sum(output.num_cached_tokens for output in outputs),
    )


def new_id(prefix: str) -> str:
    """A fresh id in OpenAI's style."""
    return f"{prefix}-{uuid.uuid4().hex}"


def prompt_logprobs_json(
    logprobs: Sequence[DecodedLogprob | None] | None,
) -> list[dict[str, Any] | None] | None:
    """Log-probabilities of a prompt: for each token, candidates by id."""
    if logprobs is None:
        return None
    return [
        None
        if entry is None
        else {
            str(item.token_id): {
                "logprob": item.logprob,
                "rank": item.rank,
                "decoded_token": item.text,
            }
            for item in (*entry.top, entry)
        }
        for entry in logprobs
    ]


async def _merge(
    streams: Sequence[AsyncIterator[list[CompletionDelta]]],
) -> AsyncIterator[tuple[int, list[CompletionDelta]]]:
    """Items of several streams as they come; the first error ends them all."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:  # type: ignore[type-var]
            async for deltas in only:
                yield 0, deltas
        return
    # One place: a slow client holds back the pumps, and what piles up is joined by the engine.
    queue: asyncio.Queue[tuple[int, list[CompletionDelta]] | Exception | None] = asyncio.Queue(1)

    async def pump(index: int, stream: AsyncIterator[list[CompletionDelta]]) -> None:
        try:
            async with contextlib.aclosing(stream) as items:  # type: ignore[type-var]
                async for deltas in items:
                    await queue.put((index, deltas))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
