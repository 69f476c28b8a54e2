"""Streams while long prompts come in: what they wait, what the prompts wait, and all in all.

For each number of streams, each way to schedule takes its turn, round after round: chunks of the
default size, chunks that fit a target (``target_itl_ms``), and whole prompts first
(``enable_chunked_prefill`` off). Long prompts arrive one after the other, each ``--pause`` seconds
after the first token of the one before; a stream that ends is replaced at once. Prints a JSON line
for each: gaps between tokens of streams while a long prompt is in progress, the time to its first
token beside that on an idle engine, and tokens a second (prompt and generated).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo import LLM, SamplingParams


@dataclass
class Seen:
    """Of one run."""

    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Between tokens of streams: (since when, until when)."""
    long: list[tuple[float, float]] = field(default_factory=list)
    """Long prompts: (arrival, first token)."""
    generated: int = 0
    computed: int = 0
    seconds: float = 0.0

    def gaps_ms(self) -> list[float]:
        """Those that touch the time in which a long prompt was in progress."""
        return [
            1e3 * (until - since)
            for since, until in self.gaps
            if any(until > arrival and since < first for arrival, first in self.long)
        ]

    def first_token_s(self) -> list[float]:
        """Of the long prompts."""
        return [first - arrival for arrival, first in self.long]


class Load:
    """Streams of one engine, and long prompts among them."""

    def __init__(self, llm: LLM, args: argparse.Namespace, seed: int) -> None:
        self._llm, self._args, self._random = llm, args, random.Random(seed)
        self._streams: dict[str, float] = {}
        self._salt = str(seed)

    def _add(self, num_tokens: int, max_tokens: int) -> str:
        prompt = [self._random.randrange(1000, 40_000) for _ in range(num_tokens)]
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return self._llm._add(prompt, params, 0, self._salt)

    def run(self, num_streams: int) -> Seen:
        """Serves ``--prompts`` long prompts beside so many streams."""
        seen, args = Seen(), self._args
        long, due = "", time.perf_counter() + args.pause
        arrived = began = time.perf_counter()
        while len(seen.long) < args.prompts:
            while len(self._streams) < num_streams:
                self._streams[self._add(32, args.stream_tokens)] = 0.0
            now = time.perf_counter()
            if not long and now >= due:
                long, arrived = self._add(args.long_tokens, 1), now
            processed = self._llm._step() if self._llm._engine.has_work else None
            now = time.perf_counter()
            if processed is None:
                continue
            stats = self._llm.last_stats
            if stats is not None:
                seen.generated += stats.num_generated_tokens
                seen.computed += stats.num_prompt_tokens
            for name in processed.deltas:
                if name in self._streams:
                    if self._streams[name]:
                        seen.gaps.append((self._streams[name], now))
                    self._streams[name] = now
            for name in processed.finished:
                self._streams.pop(name, None)
            if long in processed.finished:
                seen.long.append((arrived, now))
                long, due = "", now + args.pause
        seen.seconds = time.perf_counter() - began
        self._finish_gaps(seen)
        self._llm._engine.abort_all()
        self._streams.clear()
        return seen

    def _finish_gaps(self, seen: Seen) -> None:
        """One more step: streams that waited for the last long prompt get their token in it."""
        if self._streams:
            deltas, now = self._llm._step().deltas, time.perf_counter()
            seen.gaps += [(self._streams[name], now) for name in deltas if self._streams.get(name)]


def _row(
    name: str, streams: int, runs: list[Seen], idle_s: float, base: list[Seen]
) -> dict[str, Any]:
    gaps = np.array([gap for run in runs for gap in run.gaps_ms()])
    first = statistics.median(s for run in runs for s in run.first_token_s())
    rates = [(run.generated + run.computed) / run.seconds for run in runs]
    base_rates = [(run.generated + run.computed) / run.seconds for run in base]
    return {
        "scheduling": name,
        "streams": streams,
        "gap_p50_ms": round(float(np.percentile(gaps, 50)), 1),
        "gap_p99_ms": round(float(np.percentile(gaps, 99)), 1),
        "gap_max_ms": round(float(gaps.max()), 1),
        "long_first_token_s": round(first, 2),
        "of_idle": round(first / idle_s, 2),
        "tokens_per_s": round(statistics.median(rates), 1),
        "of_whole_prompts": round(
            statistics.median(a / b for a, b in zip(rates, base_rates, strict=True)), 3
        ),
        "generated_per_s": round(statistics.median(r.generated / r.seconds for r in runs), 1),
    }


def main() -> None:
    """Measures all ways with every number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--targets", type=float, nargs="*", default=[40, 80, 160])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--long-tokens", type=int, default=4000)
    parser.add_argument("--stream-tokens", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        "whole prompts first": {"enable_chunked_prefill": False},
        "chunks": {},
        **{f"target {target:g} ms": {"target_itl_ms": target} for target in args.targets},
    }
    engines = {
        name: LLM(
            args.model,
            dtype=args.dtype,
            quantization=args.quantization,
            num_blocks=2000,
            max_model_len=args.long_tokens + 64,
            max_num_seqs=64,
            **options,
        )
        for name, options in ways.items()
    }
    chunks = engines["chunks"]
    idle_s = min(Load(chunks, args, seed).run(0).first_token_s()[0] for seed in (1, 2))
    print(json.dumps({"idle_first_token_s": round(idle_s, 2)}), flush=True)
    for streams in args.streams:
        runs: dict[str, list[Seen]] = {name: [] for name in ways}
        for round_number in range(args.rounds + 1):
            for name, llm in engines.items():
                seen = Load(llm, args, 100 * round_number + streams).run(streams)
                if round_number:  # the first is for costs to be learned
                    runs[name].append(seen)
        for name, found in runs.items():
            row = _row(name, streams, found, idle_s, runs["whole prompts first"])
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
