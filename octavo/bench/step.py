"""Where a step's time goes: decode rows of a given context, by batch size.

``bound_ms`` is weight bytes and K and V read, over the read bandwidth that this machine shows in
the same run (a sum over a large array): no step can be quicker while decoding is bound by memory.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.llm import LLM


def read_bandwidth(threads: int) -> float:
    """Bytes a second that this machine's memory gives to ``threads`` cores."""
    torch.set_num_threads(threads)
    data = torch.ones(64 << 20)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - began)
    return data.nbytes / min(times)


def measure(llm: LLM, rows: int, context: int, steps: int, bandwidth: float) -> dict[str, Any]:
    """Medians over ``steps`` steps in which all rows decode one token."""
    # The first rows go on decoding while the prompts of the last ones are computed.
    max_tokens = steps + 8 + rows * context // 64
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for row in range(rows):
        prompt = [(row * 7 + i) % 40_000 + 5 for i in range(context)]
        llm._add(prompt, params, 0, str(row))
    samples: list[dict[str, float]] = []
    while len(samples) < steps and llm._engine.has_work:
        began = time.perf_counter()
        llm._step()
        total = time.perf_counter() - began
        stats = llm.last_stats
        if stats is None:
            continue
        if stats.num_generated_tokens == rows == stats.num_rows and stats.num_prompt_tokens == 0:
            times = stats.executor
            samples.append(
                {
                    "total_ms": 1e3 * total,
                    "forward_ms": 1e3 * times.forward_s,
                    "sample_ms": 1e3 * times.sample_s,
                }
            )
    llm._engine.abort_all()
    if len(samples) < steps:
        raise InvalidParameter(
            f"{rows} rows of {context} tokens never ran together: use fewer of them, or more blocks"
        )
    medians = {
        name: statistics.median(sample[name] for sample in samples[2:]) for name in samples[0]
    }
    info = llm.info
    moved = info.cache_plan.memory.weight_bytes
    moved += rows * context * info.spec.kv_bytes_per_token(info.kv_dtype)
    host = medians["total_ms"] - medians["forward_ms"] - medians["sample_ms"]
    return {
        "rows": rows,
        "context": context,
        **{name: round(value, 2) for name, value in medians.items()},
        "host_ms": round(host, 2),
        "host_share": round(host / medians["total_ms"], 3),
        "tokens_per_s": round(rows * 1e3 / medians["total_ms"], 1),
        "moved_mb": round(moved / 1e6, 1),
        "bound_ms": round(1e3 * moved / bandwidth, 2),
        "of_bandwidth": round(1e3 * moved / bandwidth / medians["total_ms"], 3),
    }
