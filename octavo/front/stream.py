"""One client's request in flight, as the front end keeps it: what has come and is not yet taken.

`octavo.front.async_engine` fills it, and the client's own task empties it.
"""

from __future__ import annotations

import asyncio

from octavo.core.errors import EngineError
from octavo.core.types import FinishReason
from octavo.front.outputs import CompletionDelta, RequestOutput, RequestSummary, joined
from octavo.front.submission import Options
from octavo.metrics.registry import EngineMetrics, FinishedCompletion
from octavo.transport.messages import Submit

_JOIN_AT = 64
"""Pieces of a completion that may lie about; a client that reads never has so many."""


class Stream:
    """What one client waits for: pieces or the whole, or an error."""

    __slots__ = (
        "_finish_reasons",
        "_first_token_s",
        "_has_output",
        "_last_token_s",
        "_num_cached_tokens",
        "_num_prompt_tokens",
        "_over_s",
        "_queue_s",
        "arrival_s",
        "error",
        "is_whole",
        "n",
        "news",
        "num_tokens",
        "on_end",
        "on_tokens",
        "output",
        "pending",
        "request_id",
    )

    def __init__(
        self, submit: Submit, options: Options, arrival_s: float, *, is_whole: bool
    ) -> None:
        self.request_id = submit.request_id
        self.n = n = submit.params.n
        self.arrival_s = arrival_s
        self.is_whole = is_whole
        """Whether the client wants the output alone, not the pieces."""
        self.num_tokens = [0] * n
        self.on_tokens = options.on_tokens
        self.on_end = options.on_end
        self.pending: list[CompletionDelta] = []
        self.output: RequestOutput | None = None
        self.error: EngineError | None = None
        self.news = asyncio.Event()
        self._num_prompt_tokens = len(submit.prompt_token_ids)
        self._num_cached_tokens = 0
        self._has_output = False
        self._queue_s: list[float | None] = [None] * n
        self._first_token_s: list[float | None] = [None] * n
        self._last_token_s: list[float | None] = [None] * n
        self._finish_reasons: list[FinishReason | None] = [None] * n
        self._over_s = arrival_s
        """When the last completion ended that has ended."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.output is not None or self.error is not None

    def add(self, deltas: list[CompletionDelta]) -> None:
        """There is news for the client. What it does not take is joined, to cost little."""
        self.pending += deltas
        if len(self.pending) >= _JOIN_AT * self.n:
            self.pending = joined(self.pending)
        self.news.set()

    def fail(self, error: EngineError) -> None:
        """Nothing but this error will come."""
        self.error = error
        self.news.set()

    def observe(self, deltas: list[CompletionDelta], now_s: float, metrics: EngineMetrics) -> None:
        """Tells the metrics of the tokens and ends in these deltas."""
        for delta in deltas:
            index, count = delta.index, len(delta.token_ids)
            if delta.queue_s is not None:
                self._queue_s[index] = delta.queue_s
                if index == 0:
                    self._num_cached_tokens = delta.num_cached_tokens or 0
            if count:
                before = self._last_token_s[index]
                if before is None:
                    self._first_token_s[index] = now_s
                    metrics.observe_first_token(now_s - self.arrival_s, count)
                else:
                    metrics.observe_gap(now_s - before, count)
                self._last_token_s[index] = now_s
                self.num_tokens[index] += count
                if self.on_tokens is not None:
                    self.on_tokens(count)
            reason = delta.finish_reason
            if not self._has_output and (count or reason in ("stop", "length")):
                self._has_output = True
                metrics.observe_prompt(self._num_prompt_tokens)
            if reason is not None:
                self._finish(index, reason, now_s, metrics)

    def observe_failure(self, reason: FinishReason, now_s: float, metrics: EngineMetrics) -> None:
        """Tells the metrics that whatever has not ended by now never will."""
        for index, known in enumerate(self._finish_reasons):
            if known is None:
                self._finish(index, reason, now_s, metrics)

    def summary(self, now_s: float) -> RequestSummary:
        """What became of the request, for whoever keeps a record of it."""
        arrival = self.arrival_s
        firsts = [at - arrival for at in self._first_token_s if at is not None]
        lasts = [at - arrival for at in self._last_token_s if at is not None]
        return RequestSummary(
            request_id=self.request_id,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_generated_tokens=sum(self.num_tokens),
            queue_s=self._queue_s[0],
            first_token_s=min(firsts, default=None),
            last_token_s=max(lasts, default=None),
            total_s=self._over_s - arrival,
            closed_s=now_s - arrival,
            finish_reasons=tuple([r for r in self._finish_reasons if r is not None]),
            error=self.error,
        )

    def _finish(
        self, index: int, reason: FinishReason, now_s: float, metrics: EngineMetrics
    ) -> None:
        self._finish_reasons[index] = reason
        self._over_s = now_s
        first, last, queue_s = (
            times[index] for times in (self._first_token_s, self._last_token_s, self._queue_s)
        )
        prefill_s = decode_s = None
        if first is not None and last is not None:
            decode_s = last - first
            if queue_s is not None:
                # Two clocks may be read a hair's breadth apart.
                prefill_s = max(0.0, first - self.arrival_s - queue_s)
        metrics.observe_finish(
            FinishedCompletion(
                reason=reason,
                total_s=now_s - self.arrival_s,
                num_prompt_tokens=self._num_prompt_tokens,
                num_generated_tokens=self.num_tokens[index],
                prefill_s=prefill_s,
                decode_s=decode_s,
            )
        )
