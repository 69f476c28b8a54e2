from __future__ import annotations

import time
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.core.plan import StepTimes
from octavo.core.types import FinishReason
from octavo.metrics.registry import CONTENT_TYPE, EngineMetrics, FinishedCompletion
from octavo.metrics.stats import CacheStats, StepStats

NAMES = {
    "octavo:num_requests_running": "gauge",
    "octavo:num_requests_waiting": "gauge",
    "octavo:kv_cache_usage_perc": "gauge",
    "octavo:kv_cache_blocks": "gauge",
    "octavo:prefix_cache_queries": "counter",
    "octavo:prefix_cache_hits": "counter",
    "octavo:prompt_tokens": "counter",
    "octavo:generation_tokens": "counter",
    "octavo:num_preemptions": "counter",
    "octavo:request_timeouts": "counter",
    "octavo:engine_restarts": "counter",
    "octavo:request_success": "counter",
    "octavo:time_to_first_token_seconds": "histogram",
    "octavo:inter_token_latency_seconds": "histogram",
    "octavo:e2e_request_latency_seconds": "histogram",
    "octavo:request_queue_time_seconds": "histogram",
    "octavo:request_prompt_tokens": "histogram",
    "octavo:request_generation_tokens": "histogram",
    "octavo:step_seconds": "histogram",
}


def stats(num_rows: int = 3, num_generated_tokens: int = 2) -> StepStats:
    return StepStats(
        step_id=7,
        num_running=3,
        num_waiting=5,
        cache=CacheStats(
            num_total_blocks=10, num_free_blocks=3, num_cached_blocks=5, num_used_blocks=2
        ),
        num_rows=num_rows,
        num_prompt_tokens=40,
        num_generated_tokens=num_generated_tokens,
        num_preemptions=1,
        num_prefix_queries=60,
        num_prefix_hits=32,
        schedule_s=0.0002,
        commit_s=0.0004,
        executor=StepTimes(prepare_s=0.001, forward_s=0.02, sample_s=0.003),
    )


def samples(metrics: EngineMetrics) -> dict[tuple[str, ...], float]:
    """Values by name and labels (in the order of their names), but for the model's."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == metrics.model_name
            found[sample.name, *(labels[name] for name in sorted(labels))] = sample.value
    return found


def test_exposition_has_every_name_and_type() -> None:
    text = EngineMetrics("m").exposition().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: family.type for name, family in families.items()} == NAMES
    assert all(family.documentation for family in families.values())
    assert CONTENT_TYPE.startswith("text/plain")


def test_gauges_show_the_latest_step_and_counters_the_sum() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_step(stats(num_generated_tokens=5))
    values = samples(metrics)
    assert values["octavo:num_requests_running",] == 3
    assert values["octavo:num_requests_waiting",] == 5
    assert values["octavo:kv_cache_usage_perc",] == 0.2
    assert values["octavo:kv_cache_blocks", "used"] == 2
    assert values["octavo:kv_cache_blocks", "cached"] == 5
    assert values["octavo:kv_cache_blocks", "free"] == 3
    assert values["octavo:prefix_cache_queries_total",] == 120
    assert values["octavo:prefix_cache_hits_total",] == 64
    assert values["octavo:prompt_tokens_total",] == 80
    assert values["octavo:generation_tokens_total",] == 7
    assert values["octavo:num_preemptions_total",] == 2


def test_step_times_are_split_by_part() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_step(stats(num_rows=0))  # not a step: nothing ran
    values = samples(metrics)
    parts = {"schedule": 0.0002, "prepare": 0.001, "forward": 0.02, "sample": 0.003}
    for part, seconds in {**parts, "commit": 0.0004}.items():
        assert values["octavo:step_seconds_count", part] == 1
        assert values["octavo:step_seconds_sum", part] == pytest.approx(seconds)
    assert values["octavo:step_seconds_bucket", "0.01", "forward"] == 0
    assert values["octavo:step_seconds_bucket", "0.025", "forward"] == 1
    assert values["octavo:step_seconds_bucket", "+Inf", "forward"] == 1


def test_request_times_fall_into_buckets() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_queue(0.004)
    metrics.observe_first_token(0.2)
    metrics.observe_gap(0.03, 1)
    metrics.observe_gap(0.03, 3)  # three at once: 10 ms each
    values = samples(metrics)
    assert values["octavo:request_queue_time_seconds_bucket", "0.005"] == 1
    assert values["octavo:time_to_first_token_seconds_bucket", "0.1"] == 0
    assert values["octavo:time_to_first_token_seconds_bucket", "0.25"] == 1
    assert values["octavo:inter_token_latency_seconds_count",] == 4
    assert values["octavo:inter_token_latency_seconds_bucket", "0.01"] == 3
    assert values["octavo:inter_token_latency_seconds_sum",] == pytest.approx(0.06)


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_ends_are_counted_by_reason(reason: FinishReason) -> None:
    metrics = EngineMetrics("m")
    metrics.observe_finish(
        FinishedCompletion(
            reason=reason, total_s=1.5, num_prompt_tokens=30, num_generated_tokens=12
        )
    )
    values = samples(metrics)
    ends = {key[1]: n for key, n in values.items() if key[0] == "octavo:request_success_total"}
    assert ends == {other: float(other == reason) for other in get_args(FinishReason)}
    assert values["octavo:e2e_request_latency_seconds_sum",] == 1.5
    assert values["octavo:request_prompt_tokens_sum",] == 30
    assert values["octavo:request_generation_tokens_bucket", "10.0"] == 0
    assert values["octavo:request_generation_tokens_bucket", "20.0"] == 1


def test_nothing_runs_in_a_dead_engine() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_death()
    values = samples(metrics)
    assert values["octavo:num_requests_running",] == 0
    assert values["octavo:num_requests_waiting",] == 0
    assert values["octavo:generation_tokens_total",] == 2


def test_engines_have_metrics_of_their_own() -> None:
    one, other = EngineMetrics("one"), EngineMetrics('other "quoted"\n')
    one.observe_step(stats())
    assert samples(one)["octavo:prompt_tokens_total",] == 40
    assert samples(other)["octavo:prompt_tokens_total",] == 0


def test_observing_is_cheap() -> None:
    metrics = EngineMetrics("m")
    best = 1.0
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            metrics.observe_gap(0.02, 1)
        best = min(best, time.perf_counter() - began)
    assert best < 0.01  # 10 µs each; less than 1 µs was measured on an idle machine
