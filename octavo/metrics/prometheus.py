"""Renders instruments in Prometheus's text format, with the prefix ``octavo:``.

The `prometheus_client` library writes the format; its own instruments are not used, since observing
with them takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.metrics.instruments import Family, Histogram, Kind

PREFIX = "octavo:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(families: Iterable[Family], model_name: str) -> bytes:
    """The exposition of these families, whose samples carry the label ``model_name``, and of what
    this process uses, in the library's own names (``process_``)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector([_metric(family, model_name) for family in families]))
    return generate_latest(registry)


_KINDS: dict[Kind, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class _Collector(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(family: Family, model_name: str) -> Metric:
    metric: Any = _KINDS[family.kind](
        PREFIX + family.name, family.documentation, labels=["model_name", *family.labels]
    )
    for key, instrument in family.members.items():
        values = [model_name, *key]
        if isinstance(instrument, Histogram):
            bounds = [*(str(float(bound)) for bound in instrument.bounds), "+Inf"]
            buckets = list(zip(bounds, instrument.cumulative(), strict=True))
            metric.add_metric(values, buckets, instrument.sum)
        else:
            metric.add_metric(values, instrument.value)
    found: Metric = metric
    return found
