"""Where a step's time goes: decode rows of a given context, by batch size. Prints JSON lines.

``bound_ms`` is weight bytes and K/V read, over the read bandwidth that this machine shows in the
same run (a sum over a large array): no step can be quicker while decoding is bound by memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from octavo import LLM, SamplingParams


def read_bandwidth(threads: int) -> float:
    """Bytes a second."""
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
    params = SamplingParams(temperature=0, max_tokens=steps + rows * context // 64, ignore_eos=True)
    for row in range(rows):
        prompt = [(row * 7 + i) % 40_000 + 5 for i in range(context)]
        llm._add(prompt, params, 0, str(row))
    samples: list[dict[str, float]] = []
    while len(samples) < steps:
        began = time.perf_counter()
        llm._step()
        total = time.perf_counter() - began
        stats = llm.last_stats
        assert stats is not None
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
        "bound_ms": round(1e3 * moved / bandwidth, 2),
    }


def main() -> None:
    """Measures and prints a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 10, 16, 32, 100])
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    llm = LLM(
        args.model,
        dtype=args.dtype,
        kernels=args.kernels,
        num_threads=args.threads,
        num_blocks=4096,
    )
    bandwidth = read_bandwidth(llm.info.num_threads)
    head = {"attention": llm.info.attention_backend, "bandwidth_gb_s": round(bandwidth / 1e9, 1)}
    print(json.dumps(head), flush=True)
    for rows in args.rows:
        line = measure(llm, rows, args.context, args.steps, bandwidth)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
