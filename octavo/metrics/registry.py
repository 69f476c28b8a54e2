"""All metrics of one engine.

Fed from two sources: `StepStats` of every step, and what the front end sees of requests. Names and
meanings follow the field; `exposition` is what a ``/metrics`` page shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from octavo.core.types import FinishReason
from octavo.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument
from octavo.metrics.prometheus import CONTENT_TYPE, render
from octavo.metrics.stats import StepStats

__all__ = ["CONTENT_TYPE", "EngineMetrics", "FinishedCompletion"]

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300),
)
_STEP_SECONDS = (0.0001, 0.00025, 0.0005, *_SECONDS[:11])
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCompletion:
    """What one completion came to, in seconds as the front end saw them."""

    reason: FinishReason
    total_s: float
    num_prompt_tokens: int
    num_generated_tokens: int


class EngineMetrics:
    """Counters, gauges and histograms of one engine, by the name of its model."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.families: list[Family] = []
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests that take part in steps")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")
        self._blocks = {state: Gauge() for state in ("used", "cached", "free")}
        self._add("kv_cache_blocks", "KV blocks by state", self._blocks, label="state")

    def _make_counters(self) -> None:
        self._queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache"
        )
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed")
        self._generated = self._counter("generation_tokens", "Tokens generated")
        self._preemptions = self._counter("num_preemptions", "Requests that gave back their blocks")
        self._timeouts = self._counter("request_timeouts", "Requests not done by their deadline")
        self._restarts = self._counter("engine_restarts", "Engines started in place of a dead one")
        self._success = {reason: Counter() for reason in get_args(FinishReason)}
        self._add(
            "request_success",
            "Completions that ended, by reason",
            self._success,
            label="finished_reason",
        )

    def _make_histograms(self) -> None:
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", _SECONDS
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds", "Time between tokens of a request", _SECONDS
        )
        self._total = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last token", _SECONDS
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "Arrival to first step", _SECONDS
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a completion", _TOKENS
        )
        self._request_generated = self._histogram(
            "request_generation_tokens", "Tokens generated for a completion", _TOKENS
        )
        parts = ("schedule", "prepare", "forward", "sample", "commit")
        self._step = {part: Histogram(_STEP_SECONDS) for part in parts}
        self._add("step_seconds", "Parts of a step", self._step, label="part")

    def observe_step(self, stats: StepStats) -> None:
        """Takes in one step."""
        cache = stats.cache
        self._running.value = stats.num_running
        self._waiting.value = stats.num_waiting
        self._usage.value = cache.usage
        self._blocks["used"].value = cache.num_used_blocks
        self._blocks["cached"].value = cache.num_cached_blocks
        self._blocks["free"].value = cache.num_free_blocks
        self._queries.inc(stats.num_prefix_queries)
        self._hits.inc(stats.num_prefix_hits)
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._generated.inc(stats.num_generated_tokens)
        self._preemptions.inc(stats.num_preemptions)
        if stats.num_rows:
            self._step["schedule"].observe(stats.schedule_s)
            self._step["commit"].observe(stats.commit_s)
            self._step["prepare"].observe(stats.executor.prepare_s)
            self._step["forward"].observe(stats.executor.forward_s)
            self._step["sample"].observe(stats.executor.sample_s)

    def observe_queue(self, seconds: float) -> None:
        """A completion had its first step this long after it arrived at the engine."""
        self._queue.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """A completion's first token came this long after its arrival."""
        self._first_token.observe(seconds)

    def observe_gap(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came at once, this long after the ones before."""
        self._gap.observe(seconds / num_tokens, num_tokens)

    def observe_finish(self, done: FinishedCompletion) -> None:
        """A completion has ended."""
        self._success[done.reason].inc()
        self._total.observe(done.total_s)
        self._request_prompt.observe(done.num_prompt_tokens)
        self._request_generated.observe(done.num_generated_tokens)

    def observe_timeout(self) -> None:
        """A request was not done by its deadline."""
        self._timeouts.inc()

    def observe_restart(self) -> None:
        """Another engine has taken the place of a dead one."""
        self._restarts.inc()

    def observe_death(self) -> None:
        """The engine is gone: nothing runs or waits any more. Blocks stay as last heard of."""
        self._running.value = self._waiting.value = 0

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format (`CONTENT_TYPE`)."""
        return render(self.families, self.model_name)

    def _gauge(self, name: str, doc: str) -> Gauge:
        gauge = Gauge()
        self._add(name, doc, {"": gauge})
        return gauge

    def _counter(self, name: str, doc: str) -> Counter:
        counter = Counter()
        self._add(name, doc, {"": counter})
        return counter

    def _histogram(self, name: str, doc: str, bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(bounds)
        self._add(name, doc, {"": histogram})
        return histogram

    def _add(
        self, name: str, doc: str, members: Mapping[str, Instrument], label: str | None = None
    ) -> None:
        self.families.append(Family(name=name, documentation=doc, label=label, members=members))
