"""Time of one matrix product of the native kernels, by precision and number of rows.

Prints a JSON line for each shape and precision: the best of several rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from octavo.kernels import native
from octavo.loader.quantized import INT4, INT8, quantize

SHAPES = ((3072, 576), (576, 1536), (49_152, 576))
ROWS = (1, 2, 4, 6, 10, 32, 128)


def best_us(linear: Any, n: int, k: int, rows: int) -> float:
    """Microseconds of the quickest round."""
    x, y = torch.randn(rows, k), torch.empty(rows, n)
    repeats = max(2, int(1e8 / (n * k) / rows**0.5))
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(repeats):
            linear.run(x, y)
        rounds.append((time.perf_counter() - began) / repeats)
    return round(1e6 * min(rounds), 1)


def main() -> None:
    """Measures every shape in every precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=native.instruction_sets()[0])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    for n, k in SHAPES:
        weight = torch.randn(n, k) * 0.05
        kinds = {
            "float32": weight,
            "bfloat16": weight.bfloat16(),
            "int8": quantize(weight, INT8).for_kernels(),
            "int4": quantize(weight, INT4).for_kernels(),
        }
        for name, matrix in kinds.items():
            linear = native.extension().Linear(args.isa, matrix, None, "", args.threads)
            times = {rows: best_us(linear, n, k, rows) for rows in ROWS}
            print(json.dumps({"n": n, "k": k, "weights": name, "us": times}), flush=True)


if __name__ == "__main__":
    main()
