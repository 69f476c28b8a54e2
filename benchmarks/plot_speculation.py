"""Draws what `speculation.py` printed: speed relative to no speculation, by number of streams.

python benchmarks/speculation.py > rows.jsonl
python benchmarks/plot_speculation.py rows.jsonl docs/images/speculation.svg
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {"none": "#888888", "ngram": "#2f6db5", "suffix": "#3a9d5d", "self": "#d96f2b"}


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """A panel for each workload: fixed lengths dashed, adaptive ones solid."""
    panels: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        panels[row["workload"]][row["method"]].append(row)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.6 * len(panels), 3.8), sharey=True, squeeze=False
    )
    for axis, (workload, methods) in zip(axes[0], panels.items(), strict=True):
        for method, found in methods.items():
            if method == "none":
                continue
            found.sort(key=lambda row: row["streams"])
            axis.plot(
                [row["streams"] for row in found],
                [row["of_none"] for row in found],
                "o-" if "adaptive" in method else "o--",
                color=COLOURS[method.split(",")[0]],
                label=method,
                markersize=3.5,
            )
        axis.axhline(1.0, color=COLOURS["none"], linewidth=1)
        axis.set(title=workload, xscale="log", xlabel="streams")
        streams = sorted({row["streams"] for found in methods.values() for row in found})
        axis.set_xticks(streams, [str(number) for number in streams])
        axis.minorticks_off()
    axes[0][0].set_ylabel("tokens/s, relative to no speculation")
    axes[0][-1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    draw([json.loads(line) for line in lines if line.startswith("{")], Path(sys.argv[2]))
