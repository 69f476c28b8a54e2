from __future__ import annotations

import pytest

from octavo.metrics.instruments import Counter, Histogram


def test_counter_only_grows() -> None:
    counter = Counter()
    counter.inc()
    counter.inc(0)
    counter.inc(41)
    assert counter.value == 42
    with pytest.raises(ValueError, match="back by 1"):
        counter.inc(-1)
    assert counter.value == 42


def test_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 2, 7):
        histogram.observe(value)
    histogram.observe(3, times=10)
    assert histogram.cumulative() == [2, 4, 14, 15]
    assert histogram.count == 15
    assert histogram.sum == pytest.approx(42)
