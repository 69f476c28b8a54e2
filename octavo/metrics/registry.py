"""All metrics of one engine and of the server in front of it.

Fed from two sources: `StepStats` of every step, and what the front end sees of requests. Names and
meanings follow the field; `exposition` is what a ``/metrics`` page shows, and ``docs/metrics.md``
is made from the families. Counters survive an engine that is started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from octavo.core.info import EngineInfo
from octavo.core.types import FinishReason
from octavo.metrics.buckets import (
    COMPLETIONS,
    DRAFT_LENGTHS,
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    STEP_SECONDS,
    TOKEN_SECONDS,
    TOKENS,
)
from octavo.metrics.http import HttpMetrics
from octavo.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument, Kind
from octavo.metrics.prometheus import CONTENT_TYPE, render
from octavo.metrics.stats import StepStats

__all__ = ["CONTENT_TYPE", "EngineMetrics", "FinishedCompletion"]

STEP_PARTS = ("schedule", "prepare", "forward", "sample", "commit")
_BLOCK_STATES = ("used", "cached", "free")
_Gauges: TypeAlias = dict[tuple[str, ...], Gauge]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCompletion:
    """What one completion came to, in seconds as the front end saw them."""

    reason: FinishReason
    total_s: float
    num_prompt_tokens: int
    num_generated_tokens: int
    prefill_s: float | None = None
    """From its first step to its first token; None if it had no token, or no step is known."""
    decode_s: float | None = None
    """From its first token to its last; None if it had none."""


class EngineMetrics:
    """Counters, gauges and histograms of one engine, by the name of its model."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.http = HttpMetrics()
        self.families: list[Family] = []
        self._block_size = 0
        self._make_state()
        self._make_counters()
        self._make_latencies()
        self._make_sizes()
        self.families += self.http.families

    def _make_state(self) -> None:
        self._up = self._gauge("engine_up", "1 while the engine answers, 0 while it is gone")
        self._running = self._gauge("num_requests_running", "Completions that hold KV blocks")
        self._waiting = self._gauge("num_requests_waiting", "Completions that wait for blocks")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")
        self._blocks: _Gauges = {(state,): Gauge() for state in _BLOCK_STATES}
        self._tokens: _Gauges = {(state,): Gauge() for state in _BLOCK_STATES}
        state = " by state: used by requests, cached (findable until evicted), free"
        self._add("kv_cache_blocks", f"KV blocks{state}", "gauge", self._blocks, "state")
        self._add(
            "kv_cache_tokens",
            f"Token slots of the KV blocks{state}",
            "gauge",
            self._tokens,
            "state",
        )
        self._memory: _Gauges = {}
        self._add(
            "memory_bytes",
            "What the device's memory was planned for at start, by part; total is all there is",
            "gauge",
            self._memory,
            "part",
        )
        self._cache_config: _Gauges = {}
        self._add(
            "cache_config_info",
            "1; the labels are the settings of the KV cache",
            "gauge",
            self._cache_config,
            *_CACHE_LABELS,
        )
        self._engine_config: _Gauges = {}
        self._add(
            "engine_config_info",
            "1; the labels are the model and the settings of the engine",
            "gauge",
            self._engine_config,
            *_ENGINE_LABELS,
        )

    def _make_counters(self) -> None:
        self._queries = self._counter(
            "prefix_cache_queries",
            "Prompt tokens of completions that began, looked up in the prefix cache",
        )
        self._hits = self._counter("prefix_cache_hits", "Those of them that were found")
        self._resume_queries = self._counter(
            "resumed_prefix_cache_queries",
            "Tokens of completions that came back after a preemption, looked up there",
        )
        self._resume_hits = self._counter(
            "resumed_prefix_cache_hits", "Those of them that were found"
        )
        self._forked = self._counter(
            "forked_tokens", "Tokens that completions of one request (n > 1) took from the first"
        )
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of requests, once each, whether computed or cached"
        )
        self._computed = self._counter(
            "prompt_tokens_computed",
            "Prompt tokens computed in steps, again after a preemption included",
        )
        self._generated = self._counter("generation_tokens", "Tokens generated for clients")
        self._preemptions = self._counter(
            "num_preemptions", "Times that a completion had to give back its blocks"
        )
        self._timeouts = self._counter("request_timeouts", "Requests not done by their deadline")
        self._restarts = self._counter("engine_restarts", "Engines started in place of a dead one")
        self._drafts = self._counter(
            "spec_decode_num_drafts", "Guesses of what follows, of one token or several each"
        )
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens in these guesses")
        self._accepted = self._counter(
            "spec_decode_num_accepted_tokens", "Those of them that were right"
        )
        self._accepted_at: dict[tuple[str, ...], Counter] = {}
        self._add(
            "spec_decode_num_accepted_tokens_per_pos",
            "Those of them that were right, by position in the guess",
            "counter",
            self._accepted_at,
            "position",
        )
        self._success: dict[tuple[str, ...], Counter] = {
            (reason,): Counter() for reason in get_args(FinishReason)
        }
        self._add(
            "request_success",
            "Completions that ended, by reason; error and abort are among them",
            "counter",
            self._success,
            "finished_reason",
        )

    def _make_latencies(self) -> None:
        add = self._histogram
        self._first_token = add(
            "time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN_SECONDS
        )
        self._gap = add(
            "inter_token_latency_seconds", "Time between tokens of a completion", TOKEN_SECONDS
        )
        self._add(
            "time_per_output_token_seconds",
            "The same as inter_token_latency_seconds, by the name that it had before",
            "histogram",
            {(): self._gap},
        )
        self._mean_gap = add(
            "request_time_per_output_token_seconds",
            "Mean time between tokens of each completion that ended",
            TOKEN_SECONDS,
        )
        self._total = add("e2e_request_latency_seconds", "Arrival to last token", REQUEST_SECONDS)
        self._queue = add("request_queue_time_seconds", "Arrival to first step", REQUEST_SECONDS)
        self._prefill = add(
            "request_prefill_time_seconds", "First step to first token", REQUEST_SECONDS
        )
        self._decode = add(
            "request_decode_time_seconds", "First token to last token", REQUEST_SECONDS
        )
        self._inference = add(
            "request_inference_time_seconds", "First step to last token", REQUEST_SECONDS
        )
        self._step: dict[tuple[str, ...], Histogram] = {
            (part,): Histogram(STEP_SECONDS) for part in STEP_PARTS
        }
        self._add(
            "step_seconds",
            "Parts of a step: plan, make arrays, run the model, sample, take in the result",
            "histogram",
            self._step,
            "part",
        )

    def _make_sizes(self) -> None:
        add = self._histogram
        self._request_prompt = add("request_prompt_tokens", "Prompt tokens of completions", TOKENS)
        self._request_generated = add(
            "request_generation_tokens", "Tokens generated for a completion", TOKENS
        )
        self._max_tokens = add(
            "request_params_max_tokens", "max_tokens of requests that set it", TOKENS
        )
        self._n = add("request_params_n", "Completions that a request asks for", COMPLETIONS)
        self._iteration = add("iteration_tokens_total", "Tokens computed in a step", TOKENS)
        self._draft_length = add(
            "spec_decode_draft_length",
            "Tokens guessed for a row that might be guessed for; 0 where none pays",
            DRAFT_LENGTHS,
        )

    def observe_engine(self, info: EngineInfo) -> None:
        """An engine is ready, for the first time or again."""
        self._up.value = 1
        plan = info.cache_plan
        self._block_size = plan.block_size
        memory = {
            "total": plan.memory.total_bytes,
            "weights": plan.memory.weight_bytes,
            "activations": plan.memory.activation_bytes,
            "kv_cache": plan.cache_bytes,
            "other": plan.memory.other_bytes,
        }
        for part, size in memory.items():
            self._memory.setdefault((part,), Gauge()).value = size
        for config, values in (
            (self._cache_config, _cache_values(info)),
            (self._engine_config, _engine_values(info)),
        ):
            config.clear()
            config.setdefault(values, Gauge()).value = 1

    def observe_step(self, stats: StepStats) -> None:
        """Takes in one step."""
        cache = stats.cache
        self._running.value = stats.num_running
        self._waiting.value = stats.num_waiting
        self._usage.value = cache.usage
        sizes = (cache.num_used_blocks, cache.num_cached_blocks, cache.num_free_blocks)
        for state, size in zip(_BLOCK_STATES, sizes, strict=True):
            self._blocks[state,].value = size
            self._tokens[state,].value = size * self._block_size
        self._queries.inc(stats.num_prefix_queries)
        self._hits.inc(stats.num_prefix_hits)
        self._resume_queries.inc(stats.num_resume_queries)
        self._resume_hits.inc(stats.num_resume_hits)
        self._forked.inc(stats.num_forked_tokens)
        self._computed.inc(stats.num_prompt_tokens)
        self._preemptions.inc(stats.num_preemptions)
        for length, num_rows in enumerate(stats.draft_lengths):
            if num_rows:
                self._draft_length.observe(length, num_rows)
        if stats.drafted:
            self._observe_drafts(stats)
        if stats.num_rows:
            self._iteration.observe(stats.num_tokens)
            step, times = self._step, stats.executor
            step["schedule",].observe(stats.schedule_s)
            step["prepare",].observe(times.prepare_s)
            step["forward",].observe(times.forward_s)
            step["sample",].observe(times.sample_s)
            step["commit",].observe(stats.commit_s)

    def _observe_drafts(self, stats: StepStats) -> None:
        self._drafts.inc(stats.drafted[0])
        self._drafted.inc(sum(stats.drafted))
        self._accepted.inc(sum(stats.accepted))
        for position, count in enumerate(stats.accepted):
            self._accepted_at.setdefault((str(position),), Counter()).inc(count)

    def observe_submit(self, n: int, max_tokens: int | None) -> None:
        """A client's request goes to the engine."""
        self._n.observe(n)
        if max_tokens is not None:
            self._max_tokens.observe(max_tokens)

    def observe_queue(self, seconds: float) -> None:
        """A completion had its first step this long after it arrived at the engine."""
        self._queue.observe(seconds)

    def observe_prompt(self, num_tokens: int) -> None:
        """The prompt of a client's request is computed, and its first output is here."""
        self._prompt_tokens.inc(num_tokens)

    def observe_first_token(self, seconds: float, num_tokens: int) -> None:
        """A completion's first tokens came this long after its arrival."""
        self._first_token.observe(seconds)
        self._generated.inc(num_tokens)

    def observe_gap(self, seconds: float, num_tokens: int) -> None:
        """So many tokens came at once, this long after the ones before."""
        self._gap.observe(seconds / num_tokens, num_tokens)
        self._generated.inc(num_tokens)

    def observe_finish(self, done: FinishedCompletion) -> None:
        """A completion has ended."""
        self._success[done.reason,].inc()
        self._total.observe(done.total_s)
        self._request_prompt.observe(done.num_prompt_tokens)
        self._request_generated.observe(done.num_generated_tokens)
        decode_s, num_gaps = done.decode_s, done.num_generated_tokens - 1
        if done.prefill_s is not None:
            self._prefill.observe(done.prefill_s)
            self._inference.observe(done.prefill_s + (decode_s or 0.0))
        if decode_s is not None:
            self._decode.observe(decode_s)
            if num_gaps > 0:
                self._mean_gap.observe(decode_s / num_gaps)

    def observe_timeout(self) -> None:
        """A request was not done by its deadline."""
        self._timeouts.inc()

    def observe_restart(self) -> None:
        """Another engine has taken the place of a dead one."""
        self._restarts.inc()

    def observe_death(self) -> None:
        """The engine is gone, and with it all that it held."""
        self._up.value = self._running.value = self._waiting.value = self._usage.value = 0
        for state in _BLOCK_STATES:
            self._blocks[state,].value = self._tokens[state,].value = 0

    def totals(self) -> dict[str, float]:
        """Counters since the start that have no labels, by name."""
        return {
            f"{family.name}_total": member.value
            for family in self.families
            for member in family.members.values()
            if isinstance(member, Counter) and not family.labels
        }

    def finished(self) -> dict[str, int]:
        """Completions that ended since the start, by reason."""
        return {reason: counter.value for (reason,), counter in self._success.items()}

    def step_totals(self) -> tuple[int, dict[str, float]]:
        """Steps since the start, and the seconds that each part of them took in all."""
        return self._iteration.count, {part: h.sum for (part,), h in self._step.items()}

    def latencies(self) -> dict[str, Histogram]:
        """Histograms of what clients wait for, by name. To be read only."""
        return {"first_token_s": self._first_token, "inter_token_s": self._gap}

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format (`CONTENT_TYPE`)."""
        return render(self.families, self.model_name)

    def _gauge(self, name: str, doc: str) -> Gauge:
        gauge = Gauge()
        self._add(name, doc, "gauge", {(): gauge})
        return gauge

    def _counter(self, name: str, doc: str) -> Counter:
        counter = Counter()
        self._add(name, doc, "counter", {(): counter})
        return counter

    def _histogram(self, name: str, doc: str, bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(bounds)
        self._add(name, doc, "histogram", {(): histogram})
        return histogram

    def _add(
        self,
        name: str,
        doc: str,
        kind: Kind,
        members: Mapping[tuple[str, ...], Instrument],
        *labels: str,
    ) -> None:
        family = Family(name=name, documentation=doc, kind=kind, labels=labels, members=members)
        self.families.append(family)


_CACHE_LABELS = (
    *("block_size", "num_blocks", "num_tokens", "bytes_per_block", "cache_dtype"),
    *("memory_utilization", "enable_prefix_caching"),
)
_ENGINE_LABELS = (
    *("model", "architecture", "dtype", "quantization", "device", "attention_backend"),
    *("num_threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "policy"),
)


def _cache_values(info: EngineInfo) -> tuple[str, ...]:
    plan = info.cache_plan
    return (
        *map(str, (plan.block_size, plan.num_blocks, plan.num_tokens, plan.bytes_per_block)),
        *map(str, (info.kv_dtype, plan.utilization, info.enable_prefix_caching)),
    )


def _engine_values(info: EngineInfo) -> tuple[str, ...]:
    return (
        *(info.model, info.spec.architecture, info.dtype, info.quantization, info.device),
        *(info.attention_backend, str(info.num_threads), str(info.max_model_len)),
        *(str(info.max_num_seqs), str(info.max_num_batched_tokens), info.policy or ""),
    )
