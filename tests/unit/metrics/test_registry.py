from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.echo_engine import make_info
from support.exposition import PREFIX, Samples, check_histograms, samples_of

from octavo.core.plan import StepTimes
from octavo.core.types import FinishReason
from octavo.metrics.registry import CONTENT_TYPE, EngineMetrics, FinishedCompletion
from octavo.metrics.stats import CacheStats, StepStats

NAMES = {
    "engine_up": "gauge",
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "kv_cache_blocks": "gauge",
    "kv_cache_tokens": "gauge",
    "memory_bytes": "gauge",
    "cache_config_info": "gauge",
    "engine_config_info": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "resumed_prefix_cache_queries": "counter",
    "resumed_prefix_cache_hits": "counter",
    "forked_tokens": "counter",
    "prompt_tokens": "counter",
    "prompt_tokens_computed": "counter",
    "generation_tokens": "counter",
    "num_preemptions": "counter",
    "request_timeouts": "counter",
    "engine_restarts": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
    "spec_decode_draft_length": "histogram",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "time_per_output_token_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "step_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_params_max_tokens": "histogram",
    "request_params_n": "histogram",
    "iteration_tokens_total": "histogram",
    "http_requests": "counter",
    "http_request_duration_seconds": "histogram",
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
        num_tokens=45,
        num_prompt_tokens=40,
        num_generated_tokens=num_generated_tokens,
        num_preemptions=1,
        num_prefix_queries=60,
        num_prefix_hits=32,
        num_resume_queries=9,
        num_resume_hits=8,
        num_forked_tokens=11,
        schedule_s=0.0002,
        commit_s=0.0004,
        executor=StepTimes(prepare_s=0.001, forward_s=0.02, sample_s=0.003),
    )


def samples(metrics: EngineMetrics) -> Samples:
    found = samples_of(metrics.exposition().decode(), metrics.model_name)
    check_histograms(found)
    return found


def test_exposition_has_every_name_and_type() -> None:
    text = EngineMetrics("m").exposition().decode()
    families = {
        family.name.removeprefix(PREFIX): family
        for family in text_string_to_metric_families(text)
        if not family.name.startswith("process_")
    }
    assert {name: family.type for name, family in families.items()} == NAMES
    assert all(family.documentation for family in families.values())
    assert CONTENT_TYPE.startswith("text/plain")


def test_the_process_is_described_in_the_usual_names() -> None:
    text = EngineMetrics("m").exposition().decode()
    assert "\nprocess_resident_memory_bytes " in text and "\nprocess_cpu_seconds_total " in text


def test_gauges_show_the_latest_step_and_counters_the_sum() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_engine(make_info())
    metrics.observe_step(stats())
    metrics.observe_step(stats())
    values = samples(metrics)
    assert values["num_requests_running",] == 3
    assert values["num_requests_waiting",] == 5
    assert values["kv_cache_usage_perc",] == 0.2
    assert values["kv_cache_blocks", "used"] == 2
    assert values["kv_cache_blocks", "cached"] == 5
    assert values["kv_cache_blocks", "free"] == 3
    assert values["prefix_cache_queries_total",] == 120
    assert values["prefix_cache_hits_total",] == 64
    assert values["kv_cache_tokens", "used"] == 32
    assert values["kv_cache_tokens", "cached"] == 80
    assert values["kv_cache_tokens", "free"] == 48
    assert values["resumed_prefix_cache_queries_total",] == 18
    assert values["resumed_prefix_cache_hits_total",] == 16
    assert values["forked_tokens_total",] == 22
    assert values["prompt_tokens_computed_total",] == 80
    assert values["iteration_tokens_total_sum",] == 90
    assert values["iteration_tokens_total_bucket", "20.0"] == 0
    assert values["iteration_tokens_total_bucket", "50.0"] == 2
    assert values["num_preemptions_total",] == 2


def test_step_times_are_split_by_part() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_step(stats(num_rows=0))  # not a step: nothing ran
    values = samples(metrics)
    parts = {"schedule": 0.0002, "prepare": 0.001, "forward": 0.02, "sample": 0.003}
    for part, seconds in {**parts, "commit": 0.0004}.items():
        assert values["step_seconds_count", part] == 1
        assert values["step_seconds_sum", part] == pytest.approx(seconds)
    assert values["step_seconds_bucket", "0.01", "forward"] == 0
    assert values["step_seconds_bucket", "0.025", "forward"] == 1
    assert values["step_seconds_bucket", "+Inf", "forward"] == 1


def test_request_times_fall_into_buckets() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_queue(0.004)
    metrics.observe_first_token(0.2, 2)
    metrics.observe_gap(0.03, 1)
    metrics.observe_gap(0.03, 3)  # three at once: 10 ms each
    values = samples(metrics)
    assert values["request_queue_time_seconds_bucket", "0.005"] == 1
    assert values["time_to_first_token_seconds_bucket", "0.15"] == 0
    assert values["time_to_first_token_seconds_bucket", "0.25"] == 1
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert values[f"{name}_count",] == 4
        assert values[f"{name}_bucket", "0.01"] == 3
        assert values[f"{name}_sum",] == pytest.approx(0.06)
    assert values["generation_tokens_total",] == 6


def finished(**fields: Any) -> FinishedCompletion:
    given = {"reason": "stop", "total_s": 1.5, "num_prompt_tokens": 30, "num_generated_tokens": 11}
    return FinishedCompletion(**{**given, **fields})


def test_the_parts_of_a_completion_add_up() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_finish(finished(prefill_s=0.25, decode_s=1.0))
    metrics.observe_finish(finished(prefill_s=0.5, decode_s=0.0, num_generated_tokens=1))
    metrics.observe_finish(finished(num_generated_tokens=0))  # it never began
    values = samples(metrics)
    sums = {
        "request_prefill_time_seconds": (2, 0.75),
        "request_decode_time_seconds": (2, 1.0),
        "request_inference_time_seconds": (2, 1.75),
        "request_time_per_output_token_seconds": (1, 0.1),
        "e2e_request_latency_seconds": (3, 4.5),
    }
    for name, (count, total) in sums.items():
        assert values[f"{name}_count",] == count, name
        assert values[f"{name}_sum",] == pytest.approx(total), name


def test_what_requests_ask_for() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_submit(1, None)
    metrics.observe_submit(4, 16)
    metrics.observe_prompt(7)
    values = samples(metrics)
    assert values["request_params_n_sum",] == 5
    assert values["request_params_max_tokens_count",] == 1
    assert values["request_params_max_tokens_sum",] == 16
    assert values["prompt_tokens_total",] == 7


def test_guesses_are_counted_by_position() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(replace(stats(), drafted=(3, 2), accepted=(2, 0)))
    metrics.observe_step(replace(stats(), drafted=(1,), accepted=(1,)))
    values = samples(metrics)
    assert values["spec_decode_num_drafts_total",] == 4
    assert values["spec_decode_num_draft_tokens_total",] == 6
    assert values["spec_decode_num_accepted_tokens_total",] == 3
    assert values["spec_decode_num_accepted_tokens_per_pos_total", "0"] == 3
    assert values["spec_decode_num_accepted_tokens_per_pos_total", "1"] == 0


def test_chosen_lengths_of_guesses_are_counted() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_step(replace(stats(), draft_lengths=(5, 0, 3)))
    values = samples(metrics)
    assert values["spec_decode_draft_length_bucket", "0.0"] == 5
    assert values["spec_decode_draft_length_bucket", "1.0"] == 5
    assert values["spec_decode_draft_length_bucket", "2.0"] == 8
    assert values["spec_decode_draft_length_sum",] == 6


def test_the_engine_and_its_cache_are_described() -> None:
    metrics = EngineMetrics("m")
    assert samples(metrics)["engine_up",] == 0
    metrics.observe_engine(make_info())
    metrics.observe_engine(replace(make_info(), device="cuda"))  # started again: no second one
    values = samples(metrics)
    assert values["engine_up",] == 1
    assert values["memory_bytes", "kv_cache"] == make_info().cache_plan.cache_bytes
    (config,) = (key for key in values if key[0] == "engine_config_info")
    assert "cuda" in config and "echo" in config
    (cache,) = (key for key in values if key[0] == "cache_config_info")
    assert str(make_info().cache_plan.num_blocks) in cache


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_ends_are_counted_by_reason(reason: FinishReason) -> None:
    metrics = EngineMetrics("m")
    metrics.observe_finish(finished(reason=reason))
    values = samples(metrics)
    ends = {key[1]: n for key, n in values.items() if key[0] == "request_success_total"}
    assert ends == {other: float(other == reason) for other in get_args(FinishReason)}
    assert values["e2e_request_latency_seconds_sum",] == 1.5
    assert values["request_prompt_tokens_sum",] == 30
    assert values["request_generation_tokens_bucket", "10.0"] == 0
    assert values["request_generation_tokens_bucket", "20.0"] == 1


def test_nothing_runs_in_a_dead_engine() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_engine(make_info())
    metrics.observe_step(stats())
    metrics.observe_death()
    values = samples(metrics)
    assert values["num_requests_running",] == 0
    assert values["num_requests_waiting",] == 0
    assert values["engine_up",] == values["kv_cache_usage_perc",] == 0
    assert sum(value for key, value in values.items() if key[0] == "kv_cache_blocks") == 0
    assert values["prompt_tokens_computed_total",] == 40


def test_engines_have_metrics_of_their_own() -> None:
    one, other = EngineMetrics("one"), EngineMetrics('other "quoted"\n')
    one.observe_step(stats())
    assert samples(one)["prompt_tokens_computed_total",] == 40
    assert samples(other)["prompt_tokens_computed_total",] == 0


def test_totals_are_the_counters() -> None:
    metrics = EngineMetrics("m")
    metrics.observe_step(stats())
    metrics.observe_finish(finished(reason="length"))
    values, totals = samples(metrics), metrics.totals()
    assert totals and all(values[name,] == total for name, total in totals.items())
    assert metrics.finished() == {"stop": 0, "length": 1, "abort": 0, "error": 0}
    assert metrics.step_totals()[0] == 1
    assert metrics.step_totals()[1]["forward"] == pytest.approx(0.02)


def test_observing_is_cheap() -> None:
    metrics = EngineMetrics("m")
    best = 1.0
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            metrics.observe_gap(0.02, 1)
        best = min(best, time.perf_counter() - began)
    assert best < 0.01  # 10 µs each; less than 1 µs was measured on an idle machine
