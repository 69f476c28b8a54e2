"""Requests in, streams of text out, for any number of clients on one event loop.

One task reads the engine's messages and hands each request its news; a request that is closed or
cancelled is aborted at the engine at once. A slow client gets what has piled up in one piece, so
that memory is bounded by the output's length.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from octavo.core import errors
from octavo.core.errors import (
    EngineDead,
    EngineDraining,
    EngineError,
    InvalidParameter,
    RequestError,
)
from octavo.core.info import EngineInfo
from octavo.core.params import SamplingParams, Structured
from octavo.core.plan import RequestDelta
from octavo.core.protocols import Clock
from octavo.core.request import fork_id
from octavo.core.types import RequestId, TokenId
from octavo.front.output import OutputProcessor, Processed
from octavo.front.outputs import CompletionDelta, RequestOutput
from octavo.front.stream import Stream
from octavo.front.submission import Options, make_submit
from octavo.metrics.registry import EngineMetrics
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.base import FrontEnd
from octavo.transport.messages import Abort, Failed, Progress, Ready, Shutdown, StepDone

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]


class Guard(Protocol):
    """Whom to ask before the engine hears of a grammar."""

    async def check(self, structured: Structured) -> None:
        """Raises `RequestError` if it cannot be used."""


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
        guard: Guard | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.metrics = metrics
        self._link = link
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._guard = guard
        self._outputs = OutputProcessor(tokenizer)
        self._streams: dict[RequestId, Stream] = {}
        self._ending: set[RequestId] = set()
        """Completions that ended here first; the engine has not said its last word on them."""
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
        """Waits until the engine is ready. Call it once.

        Raises:
            EngineError: it could not start; of the class that the engine itself raised.
        """
        assert self._reader is None, "start has been called before"
        try:
            self._info = await self._ready(on_progress)
        except EngineError as error:
            self._error = error
            raise
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
        on_tokens: Callable[[int], None] | None = None,
    ) -> AsyncIterator[list[CompletionDelta]]:
        """Yields what has come since the last time, until all ``params.n`` completions ended.

        Closing the iterator, or cancelling the task that waits in it, aborts the request. All that
        has been generated until then was told to ``on_tokens``, a number of tokens at a time.

        Raises:
            RequestError: the request cannot be served; raised by the first step.
            EngineDraining: the server is about to leave.
            EngineDead: the engine is gone.
        """
        options = self._options(request_id, priority, cache_salt, on_tokens)
        stream = await self._submit(prompt_token_ids, params, options, is_whole=False)
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
            await self._close(options.request_id)

    async def complete(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        *,
        request_id: RequestId | None = None,
        priority: int = 0,
        cache_salt: str = "",
        on_tokens: Callable[[int], None] | None = None,
    ) -> RequestOutput:
        """All completions, whole. Cancelling aborts the request; raises as `generate` does."""
        options = self._options(request_id, priority, cache_salt, on_tokens)
        stream = await self._submit(prompt_token_ids, params, options, is_whole=True)
        try:
            await stream.news.wait()
            if stream.output is not None:
                return stream.output
            assert stream.error is not None
            raise stream.error
        finally:
            await self._close(options.request_id)

    async def abort(self, request_id: RequestId) -> None:
        """Ends a client's request wherever it is; unknown and finished ones are ignored.

        Whoever waits for it gets what there is, with the finish reason ``abort``.
        """
        stream = self._streams.get(request_id)
        if stream is None or stream.is_over:
            return
        engine_ids = [fork_id(request_id, index) for index in range(stream.n)]
        ends = [RequestDelta(request_id=name, finish_reason="abort") for name in engine_ids]
        now = self._clock()
        processed = self._outputs.process(ends, now)
        self._deliver(processed, now)
        await self._end([engine_ids[delta.index] for delta in processed.deltas[request_id]])

    async def drain(self, timeout_s: float) -> int:
        """Refuses new requests and waits for those in flight; returns how many remain."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.num_open

    async def shutdown(self) -> None:
        """Ends the engine and everything in flight. May be called twice."""
        self._draining = True
        if self._error is None:
            await self._link.send(Shutdown())
        self._die(EngineDead("the server is shutting down: send the request again elsewhere"))
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))

    async def _ready(self, on_progress: OnProgress | None) -> EngineInfo:
        while True:
            message = await self._link.receive()
            match message:
                case Progress(stage, fraction):
                    if on_progress is not None:
                        on_progress(stage, fraction)
                case Failed(text, kind):
                    found = getattr(errors, kind, EngineDead)
                    raise found(text) if issubclass(found, EngineError) else EngineDead(text)
                case Ready(info):
                    return info

    def _options(
        self,
        request_id: RequestId | None,
        priority: int,
        cache_salt: str,
        on_tokens: Callable[[int], None] | None,
    ) -> Options:
        return Options(
            request_id=request_id or uuid.uuid4().hex,
            priority=priority,
            cache_salt=cache_salt,
            eos_token_ids=self._eos_token_ids,
            on_tokens=on_tokens,
        )

    async def _submit(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        options: Options,
        *,
        is_whole: bool,
    ) -> Stream:
        if params.structured is not None and self._guard is not None and self._error is None:
            await self._guard.check(params.structured)
        if self._error is not None:
            # A copy, since raising one object again and again would make its traceback grow.
            raise copy.copy(self._error)
        if self._draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        name = options.request_id
        if name in self._streams or self._is_ending(name, params.n):
            raise InvalidParameter(
                f"request id {name!r} is in use: choose another", param="request_id"
            )
        submit = make_submit(
            prompt_token_ids,
            params,
            options,
            tokenizer=self.tokenizer,
            vocab_size=self.info.spec.vocab_size,
        )
        now = self._clock()
        self._outputs.add(name, submit.prompt_token_ids, submit.params, now)
        stream = self._streams[name] = Stream(
            submit, now, is_whole=is_whole, on_tokens=options.on_tokens
        )
        self._idle.clear()
        try:
            await self._link.send(submit)
        except BaseException:
            await self._close(name)
            raise
        return stream

    def _is_ending(self, request_id: RequestId, n: int) -> bool:
        """Whether news of an earlier request of this name may still be on its way."""
        ending = self._ending
        return bool(ending) and any(fork_id(request_id, index) in ending for index in range(n))

    async def _close(self, request_id: RequestId) -> None:
        """Nobody waits for this request any more."""
        try:
            await self.abort(request_id)
        finally:
            del self._streams[request_id]
            if not self._streams:
                self._idle.set()

    async def _end(self, engine_ids: list[RequestId]) -> None:
        """Tells the engine of completions that have ended here first."""
        if engine_ids and self.is_alive:
            self._ending.update(engine_ids)
            await self._link.send(Abort(tuple(engine_ids)))

    async def _read(self) -> None:
        """Hands every message to those whom it concerns, until the engine is gone."""
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, StepDone):
                    await self._step_done(message)
                    # Clients have a turn, even when messages pile up.
                    await asyncio.sleep(0)
                elif isinstance(message, Failed):
                    raise EngineDead(message.error)
        except EngineError as error:
            self._die(error)
        except Exception as error:
            logger.exception("the front end cannot go on")
            self._die(EngineDead(f"the front end failed: {type(error).__name__}: {error}"))

    async def _step_done(self, message: StepDone) -> None:
        now = self._clock()
        self.metrics.observe_step(message.stats)
        for delta in message.deltas:
            if delta.finish_reason is not None:
                self._ending.discard(delta.request_id)
            if delta.error_kind is not None:
                self._refuse(delta)
            elif delta.queue_s is not None:
                self.metrics.observe_queue(delta.queue_s)
        processed = self._outputs.process(message.deltas, now)
        self._deliver(processed, now)
        await self._end(processed.aborts)

    def _refuse(self, delta: RequestDelta) -> None:
        """The engine refused a request at its door; the delta is that of any completion of it."""
        stream = self._streams.get(delta.request_id)
        if stream is not None and not stream.is_over:
            kind = getattr(errors, delta.error_kind or "", RequestError)
            self._outputs.abort(delta.request_id)
            stream.fail(kind(delta.error or "refused", param=delta.error_param))

    def _deliver(self, processed: Processed, now: float) -> None:
        for name, deltas in processed.deltas.items():
            stream = self._streams[name]
            stream.observe(deltas, now, self.metrics)
            stream.output = processed.finished.get(name)
            if not stream.is_whole:
                stream.pending += deltas
                stream.news.set()
            elif stream.output is not None:
                stream.news.set()

    def _die(self, error: EngineError) -> None:
        """Every request in flight ends with this error, and none is taken any more."""
        if self._error is not None:
            return
        self._error = error
        self._ending.clear()
        self.metrics.observe_death()
        for name, stream in self._streams.items():
            if not stream.is_over:
                self._outputs.abort(name)
                stream.fail(copy.copy(error))
