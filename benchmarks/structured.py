"""What structured output costs: decode rows without and with a grammar. Prints JSON lines.

``mask_ms`` finds the allowed tokens of all rows, beside the model; ``apply_ms`` rules the others
out. ``step_ms`` and ``plain_ms`` are whole steps, in turns so that both meet the same noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from octavo import LLM, SamplingParams, Structured
from octavo.sampling.masks import MaskFiller
from octavo.sampling.steps import grammar

FORMS = {
    "people": Structured.json(
        {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
                },
                "required": ["name", "age", "tags"],
                "additionalProperties": False,
            },
        }
    ),
    "expression": Structured.regex(r"(\d{1,3}(\.\d{2})? (EUR|USD), ){1000}"),
}


def add_rows(llm: LLM, rows: int, form: Structured | None, context: int) -> None:
    """Requests that go on for longer than is measured."""
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=10_000, structured=form)
    for row in range(rows):
        prompt = [(row * 7 + i) % 40_000 + 5 for i in range(context)]
        llm._add(prompt, params, 0, str(row))
    done = 0
    while done < rows:
        llm._step()
        assert llm.last_stats is not None
        done = llm.last_stats.num_generated_tokens


def median_step_ms(llm: LLM, steps: int) -> float:
    """Of whole steps."""
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        llm._step()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def median_ms(work: Callable[[], Any], repeat: int) -> float:
    """Of one call."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


class Watched(MaskFiller):
    """A filler that tells how long it took, beside the model."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads)
        self.seconds: list[float] = []

    def _fill(self, rows: Any) -> None:
        began = time.perf_counter()
        super()._fill(rows)
        self.seconds.append(time.perf_counter() - began)


def measure(llm: LLM, rows: int, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One line: a form, at a number of rows."""
    runner: Any = llm._engine._executor
    filler = runner._masks = Watched(llm.info.num_threads)
    plain, shaped, masks, applied = [], [], [], []
    for _ in range(args.turns):
        for form, times in ((None, plain), (FORMS[name], shaped)):
            add_rows(llm, rows, form, args.context)
            filler.seconds.clear()
            times.append(median_step_ms(llm, args.steps))
            masks += filler.seconds
            if form is not None:
                states = [seat.sampling for seat in runner._tables._seats.values()]
                logits = torch.zeros(len(states), llm.info.spec.vocab_size)
                applied.append(median_ms(lambda s=states, t=logits: grammar.apply(t, s), 9))
            llm._engine.abort_all()
            llm._step()  # tells the runner
    return {
        "form": name,
        "rows": rows,
        "mask_ms": round(1e3 * statistics.median(masks), 2),
        "worst_mask_ms": round(1e3 * max(masks), 2),
        "apply_ms": round(statistics.median(applied), 2),
        "plain_ms": round(statistics.median(plain), 2),
        "step_ms": round(statistics.median(shaped), 2),
    }


def main() -> None:
    """Measures and prints a line for each form and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 10, 32])
    parser.add_argument("--context", type=int, default=100)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    llm = LLM(args.model, dtype=args.dtype, num_blocks=1024, max_model_len=1024)
    for name in FORMS:
        for rows in args.rows:
            print(json.dumps(measure(llm, rows, name, args)), flush=True)


if __name__ == "__main__":
    main()
