"""Rates and latencies of the last 15 minutes: a sample every two seconds, while anyone looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from octavo.metrics.quantile import quantile
from octavo.metrics.registry import EngineMetrics

PERIOD_S = 2.0
_KEPT = 450
_LATENCY_SAMPLES = 5
"""A quantile is that of the last 10 seconds."""
_COUNTERS = {
    "prompt_tokens_per_s": "prompt_tokens_computed_total",
    "generated_tokens_per_s": "generation_tokens_total",
    "preemptions_per_s": "num_preemptions_total",
    "draft_tokens_per_s": "spec_decode_num_draft_tokens_total",
    "accepted_tokens_per_s": "spec_decode_num_accepted_tokens_total",
}
_QUERIES, _HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
_DRAFTS, _ACCEPTED = "spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total"

Sample = dict[str, Any]


class Samples:
    """Those taken so far, and what is needed to take the next one."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._latencies: deque[dict[str, list[int]]] = deque(maxlen=_LATENCY_SAMPLES + 1)
        self._time = 0.0
        self._totals: dict[str, float] = {}
        self._step_s: dict[str, float] = {}
        self._steps = 0

    def begin(self, time: float) -> None:
        """Somebody looks again; what happened since the last sample is in none."""
        if self._samples:
            self._samples.append({**dict.fromkeys(self._samples[-1]), "time": round(time, 3)})
        self._latencies.clear()
        self._note(time)

    def history(self) -> dict[str, list[Any]]:
        """All samples, oldest first, by name; null where there is nothing to tell."""
        names = self._samples[-1] if self._samples else ()
        return {name: [sample.get(name) for sample in self._samples] for name in names}

    def take(self, time: float, state: dict[str, Any]) -> Sample | None:
        """The next sample if it is time for one; ``state`` is what `/stats` says."""
        seconds = time - self._time
        if seconds < PERIOD_S:
            return None
        totals, step_s, steps = self._totals, self._step_s, self._steps
        self._note(time)
        grown = {name: value - totals.get(name, 0) for name, value in self._totals.items()}
        blocks, requests = state["kv_cache"]["blocks"], state["requests"]
        sample: Sample = {
            "time": round(time, 3),
            **{name: _rounded(grown[counter] / seconds) for name, counter in _COUNTERS.items()},
            "running": requests["running"],
            "waiting": requests["waiting"],
            "used_blocks": blocks["used"],
            "cached_blocks": blocks["cached"],
            "free_blocks": blocks["free"],
            "prefix_hit_rate": _ratio(grown[_HITS], grown[_QUERIES]),
            "accepted_length": _ratio(grown[_ACCEPTED], grown[_DRAFTS]),
            "steps_per_s": _rounded((self._steps - steps) / seconds),
            **{
                f"{part}_share": _rounded((total - step_s[part]) / seconds)
                for part, total in self._step_s.items()
            },
            **self._quantiles(),
        }
        self._samples.append(sample)
        return sample

    def _note(self, time: float) -> None:
        self._time = time
        self._totals = self._metrics.totals()
        self._steps, self._step_s = self._metrics.step_totals()
        self._latencies.append({n: [*h.counts] for n, h in self._metrics.latencies().items()})

    def _quantiles(self) -> Sample:
        before, now = self._latencies[0], self._latencies[-1]
        found: Sample = {}
        for name, histogram in self._metrics.latencies().items():
            counts = _grown(before[name], now[name])
            for percent in (50, 99):
                value = quantile(histogram.bounds, counts, percent / 100)
                found[f"{name}_p{percent}"] = None if value is None else round(value, 6)
        return found


def _grown(before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip(before, now, strict=True)]


def _rounded(value: float) -> float:
    return round(value, 4)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
