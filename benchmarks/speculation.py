"""Speculative decoding on text that repeats its prompt: steps, guesses and tokens a second.

Prints a JSON line for each way of guessing and number of streams, and whether the output is the
same.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

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
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "fixed": {"method": "ngram", "num_speculative_tokens": 6, "adaptive": False},
    "adaptive": {"method": "ngram", "num_speculative_tokens": 6},
}


def measure(llm: LLM, streams: int, max_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Numbers of one run, and the tokens."""
    messages = [
        [{"role": "user", "content": f"Rewrite this with the name Queue{number}:\n{CODE}"}]
        for number in range(streams)
    ]
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    steps: list[Any] = []
    step = llm._engine.step

    def counted() -> Any:
        deltas, stats = step()
        steps.append(stats)
        return deltas, stats

    llm._engine.step = counted  # type: ignore[method-assign]
    began = time.perf_counter()
    outputs = llm.chat(messages, params)
    seconds = time.perf_counter() - began
    llm._engine.step = step  # type: ignore[method-assign]
    numbers = {
        "streams": streams,
        "tokens_per_s": round(streams * max_tokens / seconds, 1),
        "steps": sum(stats.num_generated_tokens > 0 for stats in steps),
        "drafted": sum(sum(stats.drafted) for stats in steps),
        "accepted": sum(sum(stats.accepted) for stats in steps),
    }
    return numbers, [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    """Measures every way with every number of streams; prompts come from the cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()
    expected: dict[int, list[list[int]]] = {}
    for name, config in WAYS.items():
        llm = LLM(args.model, speculative_config=config, num_blocks=2000, max_model_len=1024)
        for streams in args.streams:
            measure(llm, streams, 1)
            numbers, tokens = measure(llm, streams, args.max_tokens)
            numbers["same_output"] = expected.setdefault(streams, tokens) == tokens
            print(json.dumps({"guesses": name, **numbers}), flush=True)


if __name__ == "__main__":
    main()
