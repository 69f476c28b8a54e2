"""What chat and plain completions do alike: run prompts, merge their streams, count tokens."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import UNSET, UnsetType

from octavo.core.errors import (
    ExecutorError,
    InvalidParameter,
    RequestError,
    UnsupportedParameter,
)
from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.front.outputs import CompletionDelta, DecodedLogprob, RequestOutput
from octavo.server.admission import check_room, timeout_s
from octavo.server.openai.responses import (
    CompletionTokensDetails,
    Envelope,
    PromptTokensDetails,
    Usage,
    finite,
)
from octavo.server.openai.schemas import SamplingBody
from octavo.server.parsing.plan import AnswerPlan
from octavo.server.parsing.reasoning import ReasoningMarks, ReasoningTokens
from octavo.server.state import ServerState

Result = TypeVar("Result")
News: TypeAlias = tuple[int, list[CompletionDelta]]
"""The number of a prompt, and what came of it."""
Stream: TypeAlias = AsyncGenerator[list[CompletionDelta], None]
"""What came of one prompt, as it comes."""


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
    plan: AnswerPlan = field(default_factory=AnswerPlan)
    """How to read the answers."""
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(
        self, kind: str, choices: list[Any], usage: Usage | UnsetType | None = UNSET
    ) -> Envelope:
        """An answer or chunk around ``choices``."""
        return Envelope(self.id, kind, self.created, self.model, choices, usage)

    def _options(self, number: int) -> dict[str, Any]:
        return {
            "request_id": f"{self.id}-{number}",
            "priority": self.body.priority or 0,
            "cache_salt": self.body.cache_salt or "",
            "timeout_s": timeout_s(self.state, self.body.timeout),
        }

    def _check_in(self) -> None:
        """The last look before the engine hears of the request.

        Raises:
            EngineError: the engine is gone, or the line is too long.
        """
        self.state.engine.check_open()
        check_room(self.state, self.params.n * len(self.prompts), sum(map(len, self.prompts)))

    @contextmanager
    def _named_as_sent(self) -> Iterator[None]:
        """Calls the form of the output in an error what the client called it."""
        try:
            yield
        except RequestError as error:
            if error.param == "structured":
                if self.plan.reads_calls:
                    said = str(error).partition(": ")[2] or str(error)
                    message = f"the parameters of a tool cannot be enforced: {said}"
                    raise type(error)(message, param="tools") from None
                is_newer = self.body.structured_outputs is not None
                error.param = "structured_outputs" if is_newer else "response_format"
            raise

    async def complete(self) -> list[RequestOutput]:
        """All prompts' outputs, in order. The first error ends all of them."""
        self._check_in()
        engine = self.state.engine
        with self._named_as_sent():
            outputs = await all_or_none(
                [
                    engine.complete(prompt, self.params, **self._options(number))
                    for number, prompt in enumerate(self.prompts)
                ]
            )
        for output in outputs:
            for completion in output.outputs:
                if completion.error is not None:
                    raise ExecutorError(completion.error)
        return outputs

    async def stream(self) -> AsyncGenerator[News, None]:
        """What comes of all prompts, as it comes. The first error ends all of them."""
        self._check_in()
        engine = self.state.engine
        streams = [
            cast(Stream, engine.generate(prompt, self.params, **self._options(number)))
            for number, prompt in enumerate(self.prompts)
        ]
        with self._named_as_sent():
            async with aclosing(_merge(streams)) as merged:
                async for news in merged:
                    for delta in news[1]:
                        if delta.error is not None:
                            raise ExecutorError(delta.error)
                    yield news


def check_entry(state: ServerState, *, timeout: float | None, priority: int | None) -> None:
    """Refuses what has no chance, or would be ignored, of a request of any kind.

    Raises:
        RequestError: names the parameter.
        EngineError: the engine is gone, or the line is too long.
    """
    state.engine.check_open()
    timeout_s(state, timeout)
    check_room(state)
    if priority and state.engine.info.policy == "fcfs":
        raise UnsupportedParameter(
            f"priority is {priority}, but this server serves in order of arrival: leave it "
            "out, or start the server with --policy priority",
            param="priority",
        )


def check_options(body: SamplingBody, state: ServerState) -> None:
    """Refuses what contradicts itself, or would be ignored, or has no chance: before any work is
    put into it.

    Raises:
        RequestError: names the parameter.
        EngineError: the engine is gone, or the line is too long.
    """
    check_entry(state, timeout=body.timeout, priority=body.priority)
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter(
            "stream_options is set, but stream is not true", param="stream_options"
        )
    if body.stream and body.prompt_logprobs is not None:
        raise UnsupportedParameter(
            "prompt_logprobs cannot be streamed: set stream to false", param="prompt_logprobs"
        )


class UsageCounter:
    """Adds up the tokens of a stream."""

    def __init__(self, job: Job) -> None:
        options = job.body.stream_options
        self.is_continuous = options is not None and bool(options.continuous_usage_stats)
        """Whether every chunk carries the sum so far."""
        self.is_wanted = options is not None and bool(options.include_usage)
        """Whether a last chunk carries the sum."""
        self._prompt_tokens = sum(map(len, job.prompts))
        self._cached: dict[int, int] = {}
        self._generated = 0
        self._marks = job.plan.reasoning
        self._reasoning: dict[tuple[int, int], ReasoningTokens] = {}

    def add(self, number: int, delta: CompletionDelta) -> None:
        """Takes in a piece of a completion of prompt ``number``."""
        self._generated += len(delta.token_ids)
        if self._marks is not None:
            place = number, delta.index
            if place not in self._reasoning:
                self._reasoning[place] = ReasoningTokens(self._marks)
            self._reasoning[place].add(delta.token_ids)
        if delta.num_cached_tokens is not None and delta.index == 0:
            self._cached[number] = delta.num_cached_tokens

    @property
    def total(self) -> Usage:
        """The sum so far."""
        usage = _usage(self._prompt_tokens, self._generated, sum(self._cached.values()))
        if self._marks is not None:
            thought = sum(tokens.count for tokens in self._reasoning.values())
            usage.completion_tokens_details = CompletionTokensDetails(thought)
        return usage

    @property
    def so_far(self) -> Usage | UnsetType | None:
        """What the usage field of a chunk that is not the last one holds, if it has one."""
        if self.is_continuous:
            return self.total
        return None if self.is_wanted else UNSET


def usage_of(outputs: Sequence[RequestOutput], marks: ReasoningMarks | None = None) -> Usage:
    """What whole outputs cost; each prompt counts once, however many completions it has.

    Args:
        marks: of the reasoning, to tell what it cost.
    """
    usage = _usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(c.token_ids) for output in outputs for c in output.outputs),
        sum(output.num_cached_tokens for output in outputs),
    )
    if marks is not None:
        thought = 0
        for completion in (c for output in outputs for c in output.outputs):
            tokens = ReasoningTokens(marks)
            tokens.add(completion.token_ids)
            thought += tokens.count
        usage.completion_tokens_details = CompletionTokensDetails(thought)
    return usage


def _usage(prompt_tokens: int, generated: int, cached: int) -> Usage:
    return Usage(prompt_tokens, generated, prompt_tokens + generated, PromptTokensDetails(cached))


def new_id(prefix: str) -> str:
    """A fresh id in OpenAI's style."""
    return f"{prefix}-{uuid.uuid4().hex}"


def prompt_logprobs_json(
    logprobs: Sequence[DecodedLogprob | None] | None, num_top: int | None
) -> list[dict[str, Any] | None] | None:
    """Log-probabilities of a prompt: for each token, candidates by id."""
    if logprobs is None or num_top is None:
        return None
    return [
        None
        if entry is None
        else {
            str(item.token_id): {
                "logprob": finite(item.logprob),
                "rank": item.rank,
                "decoded_token": item.text,
            }
            for item in (*entry.top[:num_top], entry)
        }
        for entry in logprobs
    ]


async def all_or_none(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order. When one fails the others are cancelled, and its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _merge(streams: Sequence[Stream]) -> AsyncGenerator[News, None]:
    """Items of several streams as they come; the first error ends them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for deltas in only:
                yield 0, deltas
        return
    # One place: a slow client holds back the pumps, and what piles up is joined by the engine.
    queue: asyncio.Queue[News | Exception | None] = asyncio.Queue(1)

    async def pump(number: int, stream: Stream) -> None:
        try:
            async with aclosing(stream) as items:
                async for deltas in items:
                    await queue.put((number, deltas))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
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
