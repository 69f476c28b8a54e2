"""Numbers of a picture, and how they are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.metrics.live import Json, Picture

NONE = "-"
_LOOK_BACK = 15
"""Samples in which the last latency is looked for: half a minute."""
_RATES = (
    "prompt_tokens_per_s",
    "generated_tokens_per_s",
    "preemptions_per_s",
    "steps_per_s",
    "accepted_length",
)
_LATENCIES = ("first_token_s_p50", "first_token_s_p99", "inter_token_s_p50", "inter_token_s_p99")
CLASSES = ("free", "cached", "used", "shared", "draft")
"""How blocks are told apart."""


def classes(picture: Picture) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Of each block an index into `CLASSES`, as [num_blocks]; drafts count as such when shared."""
    table = np.zeros(256, np.uint8)
    for code, name in enumerate(picture.state_names):
        table[code] = CLASSES.index(
            name if name in ("free", "cached") else "draft" if name.endswith("draft") else "used"
        )
    found = table[np.frombuffer(picture.columns.get("states", b""), np.uint8)]
    counts = np.frombuffer(picture.columns.get("ref_counts", b""), np.uint16)
    found[(counts > 1) & (found == CLASSES.index("used"))] = CLASSES.index("shared")
    return found


def block_counts(picture: Picture) -> dict[str, int]:
    """Blocks by class. ``used`` counts all that requests hold, as ``/stats`` does; ``shared`` and
    ``draft`` are among them."""
    cache = picture.state.get("kv_cache")
    if cache is None:
        return dict.fromkeys(("total", *CLASSES), 0)
    draft = int((classes(picture) == CLASSES.index("draft")).sum())
    blocks = {name: int(cache["blocks"][name]) for name in ("total", "free", "cached", "used")}
    return {**blocks, "shared": int(cache["shared_blocks"]), "draft": draft}


def rates(picture: Picture) -> dict[str, float | None]:
    """Rates and latencies of the last sample, and the share of prompt tokens that came from the
    cache since the start; None where there is nothing to tell."""
    found = {name: _last(picture, name, 1) for name in _RATES}
    found |= {name: _last(picture, name, _LOOK_BACK) for name in _LATENCIES}
    counters = picture.state.get("since_start", {}).get("counters", {})
    queries = counters.get("prefix_cache_queries_total")
    hits = counters.get("prefix_cache_hits_total", 0)
    return {**found, "prefix_hit_rate": hits / queries if queries else None}


def as_json(picture: Picture, url: str) -> Json:
    """All of it as one JSON object."""
    return {
        "url": url,
        "blocks": block_counts(picture),
        "rates": rates(picture),
        "state": picture.state,
        "tables": picture.tables,
    }


def _last(picture: Picture, name: str, look_back: int) -> float | None:
    column = picture.history.get(name, [])[-look_back:]
    return next((float(value) for value in reversed(column) if value is not None), None)


def count(value: float | None) -> str:
    """A whole number."""
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A number to three digits."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share of one."""
    if share is None:
        return NONE
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them, in 6 columns at most below 1,000 hours."""
    if seconds is None:
        return NONE
    if seconds < 0.09995:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    if seconds < 5970:
        return f"{seconds / 60:.0f}min"
    return f"{seconds / 3600:.0f}h"
