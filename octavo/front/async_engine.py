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
from dataclasses import replace
from typing import Literal, Protocol

from octavo.core import errors
from octavo.core.errors import (
    EngineDead,
    EngineDraining,
    EngineError,
    EngineRestarting,
    InvalidParameter,
)
from octavo.core.info import EngineInfo
from octavo.core.params import SamplingParams, Structured
from octavo.core.protocols import Clock
from octavo.core.types import RequestId, TokenId
from octavo.front.in_flight import InFlight
from octavo.front.inspection import Inspections
from octavo.front.outputs import CompletionDelta, RequestOutput, RequestSummary
from octavo.front.stream import Stream
from octavo.front.submission import Options, make_submit
from octavo.front.waiting import Waiting
from octavo.metrics.registry import EngineMetrics
from octavo.metrics.snapshot import EngineChanges, EngineSnapshot
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.base import FrontEnd
from octavo.transport.messages import (
    Abort,
    Failed,
    Inspected,
    Lost,
    Progress,
    Ready,
    Shutdown,
    StepDone,
    Unwatch,
    Watched,
)

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]


class Guard(Protocol):
    """Whom to ask before the engine hears of a grammar."""

    async def check(self, structured: Structured) -> None:
        """Raises `RequestError` if it cannot be used."""


class AsyncEngine:
    """The front end of one engine. Use it from one event loop.

    If the link belongs to a supervisor, the engine may be lost and come back: requests in flight
    fail then, and new ones are refused until it is there.
    """

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
        self.num_restarts = 0
        """How often the engine has come back."""
        self._link = link
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._guard = guard
        self._requests = InFlight(tokenizer, metrics, clock, self._send_abort)
        self._inspections = Inspections(link.send)
        self._info: EngineInfo | None = None
        self._reader: asyncio.Task[None] | None = None
        self._error: EngineError | None = None
        self._back_at = 0.0
        """When an engine that is being started again will be there, as far as one can tell."""
        self._gone = asyncio.Event()
        self._senders: set[asyncio.Task[None]] = set()
        self._num_running = 0
        self._draining = False

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
        """Why the engine does not answer now: it is gone, or comes back (`EngineRestarting`)."""
        error = copy.copy(self._error)  # raising one object often would make its traceback grow
        if isinstance(error, EngineRestarting):
            error.retry_after_s = max(1.0, self._back_at - self._clock())
        return error

    @property
    def num_waiting(self) -> int:
        """Completions that wait for others to end."""
        return self.waiting.num_completions(self.info.max_num_seqs - self._num_running)

    @property
    def waiting(self) -> Waiting:
        """What has been sent to the engine and has not begun."""
        return self._requests.waiting

    @property
    def status(self) -> Literal["ok", "draining", "restarting", "dead"]:
        """Whether requests are served now, in a word."""
        if self._error is None:
            return "draining" if self._draining else "ok"
        return "restarting" if isinstance(self._error, EngineRestarting) else "dead"

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server is about to leave."""
        return self._draining

    @property
    def num_open(self) -> int:
        """Client requests in flight."""
        return len(self._requests)

    async def start(self, on_progress: OnProgress | None = None) -> EngineInfo:
        """Waits until the engine is ready. Call it once.

        Raises:
            EngineError: it could not start; of the class that the engine itself raised.
        """
        assert self._reader is None, "start has been called before"
        try:
            self._info = await self._ready(on_progress)
        except EngineError as error:
            self._die(error)
            raise
        self.metrics.observe_engine(self._info)
        self._reader = asyncio.create_task(self._read(), name="octavo-reader")
        return self._info

    def check_open(self) -> None:
        """Refuses new requests if none are taken.

        Raises:
            EngineDraining: the server is about to leave.
            EngineDead: the engine is gone, for good or for the moment.
        """
        if self._draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        error = self.error
        if error is not None:
            raise error

    async def gone(self) -> EngineError:
        """Waits until the engine is gone for good, and says why."""
        await self._gone.wait()
        assert self._error is not None
        return self._error

    async def generate(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        *,
        request_id: RequestId | None = None,
        priority: int = 0,
        cache_salt: str = "",
        on_tokens: Callable[[int], None] | None = None,
        on_end: Callable[[RequestSummary], None] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[list[CompletionDelta]]:
        """Yields what has come since the last time, until all ``params.n`` completions ended.

        Closing the iterator, or cancelling the task that waits in it, aborts the request. All that
        has been generated until then was told to ``on_tokens``, a number of tokens at a time, and 0
        when the prompt began to be computed; ``on_end`` is told once what became of the request.

        Raises:
            RequestError: the request cannot be served; raised by the first step.
            RequestTimeout: it has not ended after ``timeout_s`` seconds.
            EngineDraining: the server is about to leave.
            EngineDead: the engine is gone.
        """
        options = self._options(request_id, priority, cache_salt, timeout_s)
        options = replace(options, on_tokens=on_tokens, on_end=on_end)
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
        on_end: Callable[[RequestSummary], None] | None = None,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """All completions, whole. Cancelling aborts the request; raises as `generate` does."""
        options = self._options(request_id, priority, cache_salt, timeout_s)
        options = replace(options, on_tokens=on_tokens, on_end=on_end)
        stream = await self._submit(prompt_token_ids, params, options, is_whole=True)
        try:
            await stream.news.wait()
            if stream.output is not None:
                return stream.output
            assert stream.error is not None
            raise stream.error
        finally:
            await self._close(options.request_id)

    async def inspect(self, max_requests: int, blocks: range = range(0)) -> EngineSnapshot:
        """How things stand in the engine, as it says between two steps.

        Args:
            max_requests: how many requests to tell of at most.
            blocks: which blocks to tell of.

        Raises:
            EngineError: the engine is gone.
        """
        error = self.error
        if error is not None:
            raise error
        return await self._inspections.ask(max_requests, blocks.start, len(blocks))

    async def watch(
        self, max_requests: int, num_text_tokens: int = 0, *, afresh: bool
    ) -> EngineChanges:
        """What has changed in the engine since the last call; everything if ``afresh``. There can
        be one who watches.

        Args:
            max_requests: how many requests to tell of at most.
            num_text_tokens: how many tokens of prompts and outputs to tell.

        Raises:
            EngineError: the engine is gone.
        """
        error = self.error
        if error is not None:
            raise error
        return await self._inspections.watch(max_requests, num_text_tokens, afresh=afresh)

    async def unwatch(self) -> None:
        """Nobody watches any more, which saves the engine from noting what changes."""
        if self.is_alive:
            await self._link.send(Unwatch())

    def names_of(self, request_id: RequestId) -> list[RequestId]:
        """Requests in flight that a client calls by this name: see `InFlight.names_of`."""
        return self._requests.names_of(request_id)

    async def abort(self, request_id: RequestId) -> None:
        """Ends a client's request wherever it is; unknown and finished ones are ignored.

        Whoever waits for it gets what there is, with the finish reason ``abort``.
        """
        await self._end(self._requests.abort(request_id))

    async def drain(self, timeout_s: float) -> int:
        """Refuses new requests and waits for those in flight; returns how many remain."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._requests.idle.wait(), timeout_s)
        return self.num_open

    async def shutdown(self) -> None:
        """Ends the engine and everything in flight. May be called twice."""
        self._draining = True
        if self._error is None:
            await self._link.send(Shutdown())
        self._die(EngineDraining("the server is shutting down: send the request again elsewhere"))
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
        self, request_id: RequestId | None, priority: int, cache_salt: str, timeout_s: float | None
    ) -> Options:
        return Options(
            request_id=request_id or uuid.uuid4().hex,
            priority=priority,
            cache_salt=cache_salt,
            eos_token_ids=self._eos_token_ids,
            deadline_s=None if timeout_s is None else self._clock() + timeout_s,
        )

    async def _submit(
        self,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        options: Options,
        *,
        is_whole: bool,
    ) -> Stream:
        self.check_open()
        if params.structured is not None and self._guard is not None:
            await self._guard.check(params.structured)
            self.check_open()
        name = options.request_id
        if self._requests.has(name, params.n):
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
        stream = self._requests.add(submit, options, is_whole=is_whole)
        try:
            await self._link.send(submit)
        except BaseException:
            await self._close(name)
            raise
        return stream

    async def _close(self, request_id: RequestId) -> None:
        """Nobody waits for this request any more."""
        try:
            await self.abort(request_id)
        finally:
            self._requests.remove(request_id)

    async def _end(self, engine_ids: list[RequestId]) -> None:
        """Tells the engine of completions that have ended here first."""
        if engine_ids and self.is_alive:
            await self._link.send(Abort(tuple(engine_ids)))

    def _send_abort(self, engine_ids: list[RequestId]) -> None:
        sender = asyncio.ensure_future(self._end(engine_ids))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _read(self) -> None:
        """Hands every message to those whom it concerns, until the engine is gone."""
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, StepDone):
                    self.metrics.observe_step(message.stats)
                    self._num_running = message.stats.num_running
                    await self._end(self._requests.step_done(message))
                    # Clients have a turn, even when messages pile up.
                    await asyncio.sleep(0)
                elif isinstance(message, Inspected | Watched):
                    self._inspections.answered(message)
                elif isinstance(message, Failed):
                    raise EngineDead(message.error)
                elif isinstance(message, Lost):
                    self._lose(message)
                elif isinstance(message, Ready):
                    self._come_back(message.info)
        except EngineError as error:
            self._die(error)
        except Exception as error:
            logger.exception("the front end cannot go on")
            self._die(EngineDead(f"the front end failed: {type(error).__name__}: {error}"))

    def _lose(self, message: Lost) -> None:
        """The engine is gone, and another one is on its way."""
        now = self._clock()
        self._back_at = now + message.ready_in_s
        failure = EngineDead(
            f"{message.reason}; another engine is being started: send the request again"
        )
        failure.retry_after_s = max(1.0, message.ready_in_s)
        num_failed = self._fail_all(failure)
        if num_failed:
            logger.error("%d requests in flight have failed with the engine", num_failed)
        self._error = EngineRestarting(
            f"{message.reason}; another engine is being started, and takes requests soon"
        )

    def _come_back(self, info: EngineInfo) -> None:
        """Another engine takes the place of the one that was lost."""
        self._info = info
        self._error = None
        self.num_restarts += 1
        self.metrics.observe_restart()
        self.metrics.observe_engine(info)

    def _die(self, error: EngineError) -> None:
        """Every request in flight ends with this error, and none is taken any more."""
        if self._gone.is_set():
            return
        self._fail_all(error)
        self._error = error
        self._gone.set()

    def _fail_all(self, error: EngineError) -> int:
        """Every request in flight ends with this error; returns how many there were."""
        self._num_running = 0
        self.metrics.observe_death()
        self._inspections.fail_all(error)
        return self._requests.fail_all(error)
