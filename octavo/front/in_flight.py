"""The requests in flight at the front end: what each client waits for, and until when.

Synchronous, and knows no link: whoever calls sends the aborts that methods return.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable

from octavo.core import errors
from octavo.core.errors import EngineError, RequestError, RequestTimeout
from octavo.core.plan import RequestDelta
from octavo.core.protocols import Clock
from octavo.core.request import fork_id
from octavo.core.types import FinishReason, RequestId
from octavo.front.deadlines import Deadlines
from octavo.front.output import OutputProcessor, Processed
from octavo.front.stream import Stream
from octavo.front.submission import Options
from octavo.front.waiting import Waiting
from octavo.metrics.registry import EngineMetrics
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.messages import StepDone, Submit


class InFlight:
    """Client requests that have not been closed. Used from one event loop.

    Args:
        on_abort: told of completions that the engine need not run on, at any time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        metrics: EngineMetrics,
        clock: Clock,
        on_abort: Callable[[list[RequestId]], None],
    ) -> None:
        self.waiting = Waiting(clock)
        self.idle = asyncio.Event()
        """Set while there is no request."""
        self.idle.set()
        self._metrics = metrics
        self._clock = clock
        self._on_abort = on_abort
        self._outputs = OutputProcessor(tokenizer)
        self._streams: dict[RequestId, Stream] = {}
        self._ending: set[RequestId] = set()
        """Completions that ended here first; the engine has not said its last word on them."""
        self._deadlines = Deadlines[RequestId](self._expire, clock)

    def __len__(self) -> int:
        return len(self._streams)

    def has(self, request_id: RequestId, n: int) -> bool:
        """Whether a request of this name is in flight, or news of an earlier one may still be on
        its way."""
        if request_id in self._streams:
            return True
        ending = self._ending
        return bool(ending) and any(fork_id(request_id, index) in ending for index in range(n))

    def add(self, submit: Submit, options: Options, *, is_whole: bool) -> Stream:
        """Expects news of this request from now on, until its deadline at most."""
        name, now = submit.request_id, self._clock()
        self._outputs.add(name, submit.prompt_token_ids, submit.params, now)
        stream = self._streams[name] = Stream(submit, options, now, is_whole=is_whole)
        self._metrics.observe_submit(submit.params.n, submit.params.max_tokens)
        self.idle.clear()
        self.waiting.enter(name, submit.params.n, len(submit.prompt_token_ids))
        if options.deadline_s is not None:
            self._deadlines.set(name, options.deadline_s)
        return stream

    def remove(self, request_id: RequestId) -> None:
        """Nobody waits for this request any more; it has ended, or has been aborted."""
        self._deadlines.discard(request_id)
        self.waiting.leave(request_id, has_begun=False)
        stream = self._streams.pop(request_id)
        if not self._streams:
            self.idle.set()
        if stream.on_end is not None:
            stream.on_end(stream.summary(self._clock()))

    def step_done(self, message: StepDone) -> list[RequestId]:
        """Hands every client its news; returns completions that need not run on."""
        now = self._clock()
        self.waiting.step_done()
        for delta in message.deltas:
            if delta.finish_reason is not None:
                self._ending.discard(delta.request_id)
            if delta.error_kind is not None:
                self._refuse(delta)
            elif delta.queue_s is not None:
                self._metrics.observe_queue(delta.queue_s)
                self.waiting.leave(delta.request_id, has_begun=True)
                self._begin(delta.request_id)
        processed = self._outputs.process(message.deltas, now)
        self._deliver(processed, now)
        return self._are_ending(processed.aborts)

    def names_of(self, request_id: RequestId) -> list[RequestId]:
        """The requests that a client calls by this name: one, those of all prompts of one answer
        (``NAME-0``, ``NAME-1``, ...), or the one that a further completion (``NAME#1``) belongs
        to. Those that are over are left out."""
        first, mark, number = request_id.rpartition("#")
        if mark and number.isdecimal():
            request_id = first
        prompts = re.compile(re.escape(request_id) + "(-[0-9]+)?")
        return [
            name
            for name, stream in self._streams.items()
            if prompts.fullmatch(name) and not stream.is_over
        ]

    def abort(self, request_id: RequestId) -> list[RequestId]:
        """Ends a request with the finish reason ``abort``; returns its completions that run.
        Those that are unknown or have ended are ignored."""
        stream = self._streams.get(request_id)
        if stream is None or stream.is_over:
            return []
        engine_ids = [fork_id(request_id, index) for index in range(stream.n)]
        ends = [RequestDelta(request_id=name, finish_reason="abort") for name in engine_ids]
        now = self._clock()
        processed = self._outputs.process(ends, now)
        self._deliver(processed, now)
        return self._are_ending([engine_ids[delta.index] for delta in processed.deltas[request_id]])

    def fail_all(self, error: EngineError) -> int:
        """The engine has forgotten everything: every request ends with this error. Returns how
        many there were."""
        self._ending.clear()
        self.waiting.clear()
        self._deadlines.clear()
        running = [name for name, stream in self._streams.items() if not stream.is_over]
        for name in running:
            self._outputs.abort(name)
            # A copy each, since raising one object again and again would make its traceback grow.
            self._fail(self._streams[name], copy.copy(error), "error")
        return len(running)

    def _are_ending(self, engine_ids: list[RequestId]) -> list[RequestId]:
        self._ending.update(engine_ids)
        return engine_ids

    def _refuse(self, delta: RequestDelta) -> None:
        """The engine refused a request at its door; the delta is that of any completion of it."""
        stream = self._streams.get(delta.request_id)
        if stream is not None and not stream.is_over:
            kind = getattr(errors, delta.error_kind or "", RequestError)
            self._outputs.abort(delta.request_id)
            stream.fail(kind(delta.error or "refused", param=delta.error_param))

    def _begin(self, request_id: RequestId) -> None:
        """The engine computes the prompt; other completions of it are known by other names."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.on_tokens is not None:
            stream.on_tokens(0)

    def _deliver(self, processed: Processed, now: float) -> None:
        for name, deltas in processed.deltas.items():
            stream = self._streams[name]
            stream.observe(deltas, now, self._metrics)
            stream.output = processed.finished.get(name)
            if not stream.is_whole:
                stream.add(deltas)
            elif stream.output is not None:
                stream.news.set()

    def _fail(self, stream: Stream, error: EngineError, reason: FinishReason) -> None:
        """Ends the completions that have not ended yet."""
        stream.fail(error)
        stream.observe_failure(reason, self._clock(), self._metrics)

    def _expire(self, request_id: RequestId) -> None:
        """A request's time is up, wherever it is and whether its client reads or not."""
        stream = self._streams[request_id]
        if stream.is_over:
            return
        waited_s, num_tokens = self._clock() - stream.arrival_s, sum(stream.num_tokens)
        what = f"it had generated {num_tokens} tokens" if num_tokens else "it had no token yet"
        error = RequestTimeout(
            f"the request was not done after {waited_s:.1f} s, its timeout: {what}; allow more "
            "time, or ask for fewer tokens"
        )
        self._fail(stream, error, "abort")
        self.waiting.leave(request_id, has_begun=False)
        self._metrics.observe_timeout()
        self._on_abort(self._are_ending(self._outputs.abort(request_id)))
