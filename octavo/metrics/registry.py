"""Prometheus metrics of one engine, in a registry of their own.

Fed from two sources: `StepStats` of every step, and what the front end sees of requests. Names and
meanings follow the field, with the prefix ``octavo:``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo.core.types import FinishReason
from octavo.metrics.stats import StepStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
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
    """Counters, gauges and histograms; `exposition` renders them."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name}
        self._families: dict[str, Any] = {}
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests that take part in steps")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")
        self._blocks = {
            state: self._gauge("kv_cache_blocks", "KV blocks by state", state=state)
            for state in ("used", "cached", "free")
        }

    def _make_counters(self) -> None:
        self._queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache"
        )
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed")
        self._generated = self._counter("generation_tokens", "Tokens generated")
        self._preemptions = self._counter("num_preemptions", "Requests that gave back their blocks")
        self._success = {
            reason: self._counter(
                "request_success", "Completions that ended, by reason", finished_reason=reason
            )
            for reason in get_args(FinishReason)
        }

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
        self._step = {
            part: self._histogram("step_seconds", "Parts of a step", _STEP_SECONDS, part=part)
            for part in ("schedule", "prepare", "forward", "sample", "commit")
        }

    def observe_step(self, stats: StepStats) -> None:
        """Takes in one step."""
        cache = stats.cache
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._usage.set(cache.usage)
        self._blocks["used"].set(cache.num_used_blocks)
        self._blocks["cached"].set(cache.num_cached_blocks)
        self._blocks["free"].set(cache.num_free_blocks)
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
        for _ in range(num_tokens):
            self._gap.observe(seconds / num_tokens)

    def observe_finish(self, done: FinishedCompletion) -> None:
        """A completion has ended."""
        self._success[done.reason].inc()
        self._total.observe(done.total_s)
        self._request_prompt.observe(done.num_prompt_tokens)
        self._request_generated.observe(done.num_generated_tokens)

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, doc: str, **labels: str) -> Gauge:
        child: Gauge = self._child(Gauge, name, doc, labels)
        return child

    def _counter(self, name: str, doc: str, **labels: str) -> Counter:
        child: Counter = self._child(Counter, name, doc, labels)
        return child

    def _histogram(
        self, name: str, doc: str, buckets: tuple[float, ...], **labels: str
    ) -> Histogram:
        child: Histogram = self._child(Histogram, name, doc, labels, buckets=buckets)
        return child

    def _child(
        self, kind: type[Any], name: str, doc: str, labels: dict[str, str], **options: Any
    ) -> Any:
        """One label combination of a metric, which is made with the first of them."""
        if name not in self._families:
            names = ["model_name", *labels]
            self._families[name] = kind(
                f"octavo:{name}", doc, names, registry=self.registry, **options
            )
        return self._families[name].labels(**self._labels, **labels)
