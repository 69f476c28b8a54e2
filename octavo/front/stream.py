"""One client's request in flight, as the front end keeps it: what has come and is not yet taken.

`octavo.front.async_engine` fills it, and the client's own task empties it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.core.errors import EngineError
from octavo.front.outputs import CompletionDelta, RequestOutput, joined
from octavo.metrics.registry import EngineMetrics, FinishedCompletion
from octavo.transport.messages import Submit

_JOIN_AT = 64
"""Pieces of a completion that may lie about; a client that reads never has so many."""


class Stream:
    """What one client waits for: pieces or the whole, or an error."""

    __slots__ = (
        "arrival_s",
        "error",
        "is_whole",
        "last_token_s",
        "n",
        "news",
        "num_prompt_tokens",
        "num_tokens",
        "on_tokens",
        "output",
        "pending",
    )

    def __init__(
        self,
        submit: Submit,
        arrival_s: float,
        *,
        is_whole: bool,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self.n = submit.params.n
        self.num_prompt_tokens = len(submit.prompt_token_ids)
        self.arrival_s = arrival_s
        self.is_whole = is_whole
        """Whether the client wants the output alone, not the pieces."""
        self.last_token_s: list[float | None] = [None] * self.n
        self.num_tokens = [0] * self.n
        self.on_tokens = on_tokens
        self.pending: list[CompletionDelta] = []
        self.output: RequestOutput | None = None
        self.error: EngineError | None = None
        self.news = asyncio.Event()

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
            if count:
                before = self.last_token_s[index]
                if before is None:
                    metrics.observe_first_token(now_s - self.arrival_s, count)
                else:
                    metrics.observe_gap(now_s - before, count)
                self.last_token_s[index] = now_s
                self.num_tokens[index] += count
                if self.on_tokens is not None:
                    self.on_tokens(count)
            if delta.finish_reason is not None:
                metrics.observe_finish(
                    FinishedCompletion(
                        reason=delta.finish_reason,
                        total_s=now_s - self.arrival_s,
                        num_prompt_tokens=self.num_prompt_tokens,
                        num_generated_tokens=self.num_tokens[index],
                    )
                )
