"""How many tokens a step should hold: as few as compute prompts at nearly full speed.

A step reads all weights once, so small ones waste the arithmetic; a large one gains nothing more,
but whoever streams beside it waits longer. Measured at start, from small to large.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_NEARLY = 0.95
"""Share of the best speed that is good enough."""
_MAX_S = 1.0
"""Seconds after which nothing larger is tried."""


class StepSize(NamedTuple):
    """A choice, and why."""

    tokens: int
    reason: str


def sizes_between(smallest: int, largest: int) -> list[int]:
    """Powers of two times ``smallest``, up to ``largest``."""
    sizes = [smallest]
    while 2 * sizes[-1] <= largest:
        sizes.append(2 * sizes[-1])
    return sizes


def choose_step_size(
    sizes: Sequence[int],
    run: Callable[[int], object],
    *,
    at_least: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepSize:
    """The smallest of ``sizes`` (ascending) whose tokens a second are nearly the best.

    Args:
        run: computes a step of so many tokens, and waits for it.
        at_least: rows that a step must have room for.
    """
    began = clock()
    speeds: dict[int, float] = {}
    for size in sizes:
        if not speeds:
            run(size)  # memory is touched and threads are started for the first time
        since = clock()
        run(size)
        speeds[size] = size / max(clock() - since, 1e-9)
        is_flat = len(speeds) > 2 and speeds[size] < speeds[size // 4] / _NEARLY
        if is_flat or clock() - began > _MAX_S:
            break
    best = max(speeds.values())
    chosen = next(size for size in speeds if speeds[size] >= _NEARLY * best)
    measured = f"{speeds[chosen]:,.0f} tokens/s in steps of {chosen:,}"
    if len(speeds) > 1:
        last = max(speeds)
        measured += f", {speeds[last]:,.0f} in steps of {last:,}"
    if chosen < at_least:
        return StepSize(at_least, f"one for each of max_num_seqs; measured: {measured}")
    return StepSize(chosen, f"measured: {measured}")
