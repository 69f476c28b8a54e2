"""Quantiles of histograms, as Prometheus estimates them."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value that ``share`` of all observations are at most, by linear interpolation within its
    bucket; the last bound for one beyond it, and None without observations.

    Args:
        bounds: upper bounds of the buckets, the last of which has none.
        counts: observations by bucket, one more than there are bounds.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count >= wanted:
            return below + (upper - below) * wanted / count
        wanted -= count
        below = upper
    return below
