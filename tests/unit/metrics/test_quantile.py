from __future__ import annotations

import pytest

from octavo.metrics.quantile import quantile

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.5),
        ([0, 4, 0, 0], 0.5, 1.5),
        ([1, 1, 2, 0], 0.5, 2.0),
        ([1, 1, 2, 0], 0.75, 3.0),
        ([1, 1, 2, 0], 1.0, 4.0),
        ([0, 0, 0, 3], 0.5, 4.0),
    ],
)
def test_quantiles(counts: list[int], share: float, expected: float | None) -> None:
    assert quantile(BOUNDS, counts, share) == expected
