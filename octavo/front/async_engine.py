"""Requests in, streams of text out, for any number of clients on one event loop.

One task reads the engine's messages and hands each request its news; a request that is closed or
cancelled is aborted at the engine at once. A slow client gets what has piled up in one piece, so
that memory is bounded by the output's length.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from octavo.core import errors
from octavo.core.errors import EngineDead, EngineDraining, EngineError, RequestError
from octavo.core.info import EngineInfo
from octavo.core.params import SamplingParams, validate_against_vocab
from octavo.core.plan import RequestDelta
from octavo.core.protocols import Clock
from octavo.core.types import FinishReason, RequestId, TokenId
from octavo.front.output import OutputProcessor, Processed
from octavo.front.outputs import CompletionDelta, RequestOutput
from octavo.metrics.registry import EngineMetrics, FinishedCompletion
from octavo.tokenizer.bad_words import with_bad_words
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.base import FrontEnd
from octavo.transport.messages import Abort, Failed, Progress, Ready, Shutdown, StepDone, Submit

OnProgress = Callable[[str, float], None]


@dataclass(slots=True, eq=False)
class _Stream:
    """What one client waits for."""

    num_prompt_tokens: int
    arrival_s: float
    last_token_s: dict[int, float] = field(default_factory=dict)
    num_tokens: dict[int, int] = field(default_factory=dict)
    pending: list[CompletionDelta] = field(default_factory=list)
    output: RequestOutput | None = None
    error: EngineError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: EngineError) -> None:
        self.error = error
        self.news.set()


class AsyncEngine:
    """The front end of one engine. Use it from one event loop."""

    def __init__(
        self,
        link: FrontEnd,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: frozenset[TokenId],
        metrics: EngineMetrics,
        clock: Clock,
    ) -> None:
        self.tokenizer = tokenizer
        self.metrics = metrics
        self._link = link
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._outputs = OutputProcessor(tokenizer)
        self._streams: dict[RequestId, _Stream] = {}
        self._info: EngineInfo | None = None
        self._reader: asyncio.Task[None] | None = None
        self._error: EngineError | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> EngineInfo:
        """What the engine said when it was ready."""
        assert self._info is not None, "the engine has not been started"
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether the engine answers."""
        return self._info is not None and self._error is None

    @property
    def error(self) -> EngineError | None:
        """Why the engine is gone."""
        return self._error

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server is about to leave."""
        return self._draining

    @property
    def num_open(self) -> int:
        """Client requests in flight."""
        return len(self._streams)

    async def start(self, on_progress: OnProgress | None = None) -> EngineInfo:
        """Waits until the engine is ready.

        Raises:
            EngineError: it could not start; of the class that the engine itself raised.
        """
        while self._info is None:
            message = await self._link.receive()
            match message:
                case Progress(stage, fraction):
                    if on_progress is not None:
                        on_progress(stage, fraction)
                case Failed():
                    self._error = _from_failure(message)
                    raise self._error
                case Ready(info):
                    self._info = info
        self._reader = asyncio.create_task(self._read(), name="octavo-reader")
        return self._info

    async def generate(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        *,
        request_id: RequestId | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[list[CompletionDelta]]:
        """Yields what has come since the last time, until all ``params.n`` completions ended.

        Closing the iterator, or cancelling the task that waits in it, aborts the request.

        Raises:
            RequestError: the request cannot be served; raised by the first step.
            EngineDraining: the server is about to leave.
            EngineDead: the engine is gone.
        """
        name, stream = await self._submit(
            prompt_token_ids, params, request_id, priority, cache_salt
        )
        try:
            while True:
                await stream.news.wait()
                stream.news.clear()
                pending, stream.pending = stream.pending, []
                if pending:
                    yield pending
                if stream.error is not None:
                    raise stream.error
                if stream.output is not None and not stream.pending:
                    return
        finally:
            await self.abort(name)

    async def complete(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        *,
        request_id: RequestId | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestOutput:
        """All completions, whole. Cancelling aborts the request; raises as `generate` does."""
        name, stream = await self._submit(
            prompt_token_ids, params, request_id, priority, cache_salt
        )
        try:
            while stream.output is None:
                await stream.news.wait()
                stream.news.clear()
                stream.pending.clear()
                if stream.error is not None:
                    raise stream.error
            return stream.output
        finally:
            await self.abort(name)

    async def abort(self, request_id: RequestId) -> None:
        """Ends a client's request wherever it is; unknown and finished ones are ignored."""
        stream = self._streams.get(request_id)
        self._forget(request_id)
        engine_ids = self._outputs.abort(request_id)
        if stream is not None:
            for index in range(len(engine_ids)):
                self._observe_finish(stream, index, "abort")
        if engine_ids and self.is_alive:
            await self._link.send(Abort(tuple(engine_ids)))

    async def drain(self, timeout_s: float) -> int:
        """Refuses new requests and waits for those in flight; returns how many remain."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.num_open

    async def shutdown(self) -> None:
        """Ends the engine and everything in flight."""
        self._draining = True
        if self.is_alive:
            await self._link.send(Shutdown())
        self._die(EngineDead("the server is shutting down: send the request again elsewhere"))
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    async def _submit(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        request_id: RequestId | None,
        priority: int,
        cache_salt: str,
    ) -> tuple[RequestId, _Stream]:
        if self._error is not None:
            raise self._error
        if self._draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        validate_against_vocab(params, self.info.spec.vocab_size)
        params = with_bad_words(params, self.tokenizer)
        name = request_id or uuid.uuid4().hex
        now, prompt = self._clock(), tuple(prompt_token_ids)
        self._outputs.add(name, prompt, params, now)
        stream = self._streams[name] = _Stream(len(prompt), now)
        self._idle.clear()
        await self._link.send(
            Submit(
                request_id=name,
                prompt_token_ids=prompt,
                params=params,
                seed=secrets.randbits(63) if params.seed is None else params.seed,
                eos_token_ids=self._eos_token_ids,
                priority=priority,
                cache_salt=cache_salt,
            )
        )
        return name, stream

    async def _read(self) -> None:
        """Hands every message to those whom it concerns, until the engine is gone."""
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, StepDone):
                    await self._step_done(message)
                elif isinstance(message, Failed):
                    raise _from_failure(message)
        except EngineError as error:
            self._die(error)
        except Exception as error:
            self._die(EngineDead(f"the front end failed: {type(error).__name__}: {error}"))
            raise

    async def _step_done(self, message: StepDone) -> None:
        now = self._clock()
        self.metrics.observe_step(message.stats)
        for delta in message.deltas:
            if delta.error_kind is not None:
                self._refuse(delta)
            elif delta.queue_s is not None:
                self.metrics.observe_queue(delta.queue_s)
        processed = self._outputs.process(message.deltas, now)
        self._deliver(processed, now)
        if processed.aborts:
            await self._link.send(Abort(tuple(processed.aborts)))

    def _refuse(self, delta: RequestDelta) -> None:
        """The engine refused a request at its door."""
        stream = self._streams.get(delta.request_id)
        if stream is not None:
            kind = getattr(errors, delta.error_kind or "", RequestError)
            stream.fail(kind(delta.error or "refused", param=delta.error_param))
            self._outputs.abort(delta.request_id)

    def _deliver(self, processed: Processed, now: float) -> None:
        for name, deltas in processed.deltas.items():
            stream = self._streams.get(name)
            if stream is not None:
                stream.pending += deltas
                stream.output = processed.finished.get(name)
                stream.news.set()
                self._observe(stream, deltas, now)

    def _observe(self, stream: _Stream, deltas: list[CompletionDelta], now: float) -> None:
        for delta in deltas:
            count = len(delta.token_ids)
            stream.num_tokens[delta.index] = stream.num_tokens.get(delta.index, 0) + count
            if count:
                before = stream.last_token_s.get(delta.index)
                if before is None:
                    self.metrics.observe_first_token(now - stream.arrival_s)
                else:
                    self.metrics.observe_gap(now - before, count)
                stream.last_token_s[delta.index] = now
            if delta.finish_reason is not None:
                self._observe_finish(stream, delta.index, delta.finish_reason)

    def _observe_finish(self, stream: _Stream, index: int, reason: FinishReason) -> None:
        self.metrics.observe_finish(
            FinishedCompletion(
                reason=reason,
                total_s=self._clock() - stream.arrival_s,
                num_prompt_tokens=stream.num_prompt_tokens,
                num_generated_tokens=stream.num_tokens.get(index, 0),
            )
        )

    def _forget(self, request_id: RequestId) -> None:
        self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()

    def _die(self, error: EngineError) -> None:
        if self._error is None:
            self._error = error
        for name, stream in list(self._streams.items()):
            if stream.output is None:
                stream.fail(error)
                self._outputs.abort(name)


def _from_failure(message: Failed) -> EngineError:
    kind = getattr(errors, message.kind, EngineDead)
    return kind(message.error) if issubclass(kind, EngineError) else EngineDead(message.error)
