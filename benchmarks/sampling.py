"""Time of one sampling call, by kind of request. Prints JSON, milliseconds."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from octavo.core.params import SamplingParams
from octavo.sampling.pipeline import sample
from octavo.sampling.state import RequestSampling

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {},
    "top_k and top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 0, "logprobs": 5},
}


def peaked_logits(rows: int, vocab: int) -> torch.Tensor:
    """Random logits with the long tail of a language model's: few tokens hold most of the mass."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.argsort(torch.rand(rows, vocab, generator=generator), dim=-1).float()
    return -1.5 * torch.log(ranks + 1)


def milliseconds(rows: int, vocab: int, params: dict[str, Any], repeat: int) -> float:
    """Median of ``repeat`` calls."""
    logits = peaked_logits(rows, vocab)
    states = [
        RequestSampling(
            SamplingParams(**params),
            seed=row,
            eos_token_ids=frozenset(),
            prompt_token_ids=list(range(200)),
            output_token_ids=list(range(100)),
            vocab_size=vocab,
        )
        for row in range(rows)
    ]
    times = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        sample(logits, states)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {
        f"{rows} rows": {
            kind: round(milliseconds(rows, args.vocab, params, args.repeat), 2)
            for kind, params in KINDS.items()
        }
        for rows in args.rows
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
