"""Writes docs/metrics.md from the metrics themselves; ``--check`` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from octavo.metrics.instruments import Family, Histogram
from octavo.metrics.prometheus import PREFIX
from octavo.metrics.registry import EngineMetrics

TARGET = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

HEAD = f"""# Metrics

Made by `scripts/metrics_reference.py` from the metrics themselves; do not edit by hand.

`GET /metrics` speaks Prometheus's text format. Every name has the prefix `{PREFIX}`, and every
sample the label `model_name`. Names are those of vLLM where it has the same thing, so that a
query becomes ours by its prefix. What the server's process uses comes besides, in Prometheus's
usual names (`process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`,
...).

Counters never go back while the server runs, engines that are started again included. A
*completion* is one of the `n` answers of a request. Times are the front end's; they begin when a
request is handed to the engine, after its prompt is tokenized.

What clients are told adds up to what is counted: `prompt_tokens_total` is the sum of
`usage.prompt_tokens`, `generation_tokens_total` that of `usage.completion_tokens`, and
`prefix_cache_hits_total` that of `usage.prompt_tokens_details.cached_tokens` (for `n = 1`), if
clients stay for the whole answer. A test holds these to it.
"""

TAIL = """
## Paths and statuses

`path` is a path of the routing table, such as `/v1/chat/completions`, and `other` for whatever is
in none. `status` is that of the answer's head: an error that ends a stream has status 200, and
shows in `request_success_total{finished_reason="error"}`. 499 stands for a client that left
before its answer. Connections that are refused before there is a request (headers too large or
too slow) are not counted.
"""


def rows(family: Family) -> Iterator[str]:
    """The row of a family in the table."""
    name = family.name + ("_total" if family.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in family.labels)
    yield f"| `{name}` | {family.kind} | {labels} | {family.documentation} |"


def buckets(families: list[Family]) -> Iterator[str]:
    """Which histograms have which bounds."""
    by_bounds: dict[tuple[float, ...], list[str]] = {}
    for family in families:
        for member in family.members.values():
            if isinstance(member, Histogram):
                names = by_bounds.setdefault(member.bounds, [])
                if family.name not in names:
                    names.append(family.name)
    for bounds, names in by_bounds.items():
        shown = ", ".join(f"{bound:,g}" if bound < 1e6 else f"{bound:,.0f}" for bound in bounds)
        yield f"* {', '.join(f'`{name}`' for name in names)}: {shown}"


def page() -> str:
    """The whole page."""
    metrics = EngineMetrics("")
    metrics.http.observe("GET", "/", 200, 0.0)  # so that its histogram is there to be read
    lines = ["", "| name | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in metrics.families:
        lines += rows(family)
    lines += ["", "## Buckets", "", *buckets(metrics.families)]
    return HEAD + "\n".join(lines) + "\n" + TAIL


def main() -> int:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is out of date")
    args = parser.parse_args()
    if args.check:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != page():
            print(f"{TARGET} is out of date: run scripts/metrics_reference.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
