"""``octavo bench``: measurements of the engine on this machine."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from octavo.cli.sampling import add_engine_arguments, engine_options

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_COLUMNS = {
    "rows": "rows",
    "context": "context",
    "total_ms": "step ms",
    "forward_ms": "model ms",
    "sample_ms": "sampling ms",
    "host_ms": "host ms",
    "host_share": "host share",
    "tokens_per_s": "tokens/s",
    "moved_mb": "MB moved",
    "of_bandwidth": "of bandwidth",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One measurement today; the engine's flags choose what is measured."""
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
    step = kinds.add_parser(
        "step",
        help="time of a decode step, its parts, and the memory bandwidth that it reaches",
        description="Time of a decode step by batch size and context, its parts, the bytes that it "
        "must move, and the share of this machine's read bandwidth that this is.",
    )
    step.add_argument(
        "--rows", type=int, nargs="+", default=_BATCHES, metavar="N", help="batch sizes"
    )
    step.add_argument(
        "--context", type=int, nargs="+", default=(300,), metavar="N", help="tokens of each row"
    )
    step.add_argument(
        "--steps", type=int, default=20, metavar="N", help="steps of which the median counts [20]"
    )
    step.add_argument("--json", action="store_true", help="print JSON lines")
    add_engine_arguments(step)


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    from octavo.bench import step
    from octavo.llm import LLM

    options = engine_options(args)
    options.setdefault("max_num_seqs", max(256, *args.rows))
    llm = LLM(**options)
    bandwidth = step.read_bandwidth(llm.info.num_threads)
    lines = []
    for context in args.context:
        for rows in args.rows:
            line = step.measure(llm, rows, context, args.steps, bandwidth)
            lines.append(line)
            if args.json:
                print(json.dumps(line), flush=True)
    if not args.json:
        title = (
            f"{llm.info.model}, {llm.info.attention_backend}, weights "
            f"{llm.info.cache_plan.memory.weight_bytes / 1e6:.0f} MB, "
            f"{bandwidth / 1e9:.1f} GB/s read bandwidth"
        )
        table = Table(*_COLUMNS.values(), title=title)
        for line in lines:
            table.add_row(*(str(line[name]) for name in _COLUMNS))
        Console().print(table)
    return 0
