"""Renders instruments in Prometheus's text format, with the prefix ``octavo:``.

The `prometheus_client` library writes the format; its own instruments are not used, since observing
with them takes several times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.metrics.instruments import Counter, Family, Gauge, Histogram

PREFIX = "octavo:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(families: Iterable[Family], model_name: str) -> bytes:
    """The exposition of these families; every sample carries the label ``model_name``."""
    registry = CollectorRegistry()
    registry.register(_Collector([_metric(family, model_name) for family in families]))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(family: Family, model_name: str) -> Metric:
    name, doc = PREFIX + family.name, family.documentation
    labels = ["model_name"] if family.label is None else ["model_name", family.label]
    counters = CounterMetricFamily(name, doc, labels=labels)
    gauges = GaugeMetricFamily(name, doc, labels=labels)
    histograms = HistogramMetricFamily(name, doc, labels=labels)
    for key, instrument in family.members.items():
        values = [model_name] if family.label is None else [model_name, key]
        match instrument:
            case Counter():
                counters.add_metric(values, instrument.value)
            case Gauge():
                gauges.add_metric(values, instrument.value)
            case Histogram():
                bounds = [*(str(float(bound)) for bound in instrument.bounds), "+Inf"]
                buckets = list(zip(bounds, instrument.cumulative(), strict=True))
                histograms.add_metric(values, buckets, instrument.sum)
    return next(metric for metric in (counters, gauges, histograms) if metric.samples)
