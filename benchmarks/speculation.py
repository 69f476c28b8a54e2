"""Speculative decoding: tokens a second and gaps between pieces, by method and number of streams.

All engines are in one process and take turns, round after round, so that what disturbs the machine
disturbs all of them. Prints a JSON line for each workload, number of streams and method: medians
over the rounds, the speed relative to no speculation in the same round, and whether the tokens are
those of no speculation. `plot_speculation.py` draws them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from octavo import LLM, SamplingParams

CODE = """class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop()
    def peek(self):
        return self.items[-1]
    def is_empty(self):
        return len(self.items) == 0
"""
ARTICLE = """A paged cache keeps keys and values in blocks of sixteen tokens. A block is taken when
a token needs it, and may lie anywhere in memory; a table for each request says where its blocks
are. So no memory is reserved for tokens that never come, and no gap is left that nothing fits
into. Blocks that are full are found again by a hash of their tokens and of all tokens before them:
requests that begin alike share what they have in common. When memory runs out, the request that
came last gives back its blocks and waits; what it knew is computed again later."""
ASKED = {
    "code": f"Rewrite this class with the name Queue{{}}:\n{CODE}",
    "summary": f"Summarise this text in {{}} sentences:\n{ARTICLE}",
    "chat": "Tell me a story about the number {}.",
}


def _ways(longest: int) -> dict[str, dict[str, Any] | None]:
    ways: dict[str, dict[str, Any] | None] = {"none": None}
    for method in ("ngram", "suffix", "self"):
        config = {"method": method, "num_speculative_tokens": longest}
        ways[f"{method}, {longest}"] = config | {"adaptive": False}
        ways[f"{method}, adaptive"] = config
    return ways


class Run(NamedTuple):
    """What one engine did with one load."""

    tokens_per_s: float
    gaps_ms: list[float]
    drafted: int
    accepted: int
    mean_length: float
    tokens: list[tuple[int, ...]]


def run(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> Run:
    """Decodes all prompts together; their prefill is not counted (they come from the cache)."""
    ids = [llm._add(prompt, params, 0, str(number)) for number, prompt in enumerate(prompts)]
    outputs: dict[str, tuple[int, ...]] = {}
    seconds, drafted, accepted, lengths = [], 0, 0, np.zeros(32)
    num_tokens = 0
    while llm._engine.has_work:
        began = time.perf_counter()
        step = llm._step()
        taken = time.perf_counter() - began
        for name, output in step.finished.items():
            outputs[name] = tuple(output.outputs[0].token_ids)
        stats = llm.last_stats
        if stats is None or stats.num_prompt_tokens:
            continue
        seconds.append(taken)
        num_tokens += stats.num_generated_tokens
        drafted += sum(stats.drafted)
        accepted += sum(stats.accepted)
        for length, rows in enumerate(stats.draft_lengths):
            lengths[length] += rows
    return Run(
        num_tokens / sum(seconds),
        [1e3 * value for value in seconds],
        drafted,
        accepted,
        float(lengths @ np.arange(32) / max(1, lengths.sum())),
        [outputs[name] for name in ids],
    )


def compare(
    engines: dict[str, LLM], kind: str, streams: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each engine."""
    first = next(iter(engines.values()))
    texts = [ASKED[kind].format(number + 2) for number in range(streams)]
    prompts = [first.render_chat([{"role": "user", "content": text}]) for text in texts]
    params = SamplingParams(
        temperature=args.temperature, seed=1, max_tokens=args.max_tokens, ignore_eos=True
    )
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for llm in engines.values():  # prompts into the cache, and costs learned
        run(llm, prompts, params)
    for round_number in range(args.rounds):
        names = list(engines)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            runs[name].append(run(engines[name], prompts, params))
    rows = []
    for name, found in runs.items():
        ratios = [
            ours.tokens_per_s / none.tokens_per_s
            for ours, none in zip(found, runs["none"], strict=True)
        ]
        gaps = np.concatenate([one.gaps_ms for one in found])
        drafted = sum(one.drafted for one in found)
        rows.append(
            {
                "workload": kind,
                "streams": streams,
                "method": name,
                "tokens_per_s": round(statistics.median(r.tokens_per_s for r in found), 1),
                "of_none": round(statistics.median(ratios), 3),
                "of_none_min": round(min(ratios), 3),
                "of_none_max": round(max(ratios), 3),
                "gap_p50_ms": round(float(np.percentile(gaps, 50)), 1),
                "gap_p99_ms": round(float(np.percentile(gaps, 99)), 1),
                "accepted": round(sum(r.accepted for r in found) / drafted, 3) if drafted else None,
                "mean_length": round(statistics.mean(r.mean_length for r in found), 2),
                "same_output": all(r.tokens == runs["none"][0].tokens for r in found),
            }
        )
    return rows


def main() -> None:
    """Measures every method on every workload with every number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--workloads", nargs="*", choices=list(ASKED), default=list(ASKED))
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 100])
    parser.add_argument("--methods", nargs="*", help="names to run, e.g. 'self, adaptive'")
    parser.add_argument("--longest", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    num_blocks = max(args.streams) * -(-(420 + args.max_tokens) // 16) + 64
    engines = {
        name: LLM(
            args.model,
            dtype=args.dtype,
            quantization=args.quantization,
            speculative_config=config,
            num_blocks=num_blocks,
            max_model_len=1024,
        )
        for name, config in _ways(args.longest).items()
        if config is None or not args.methods or name in args.methods
    }
    for kind in args.workloads:
        for streams in args.streams:
            for row in compare(engines, kind, streams, args):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
