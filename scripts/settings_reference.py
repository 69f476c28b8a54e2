"""Writes docs/settings.md from the configuration's fields; ``--check`` only compares."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from octavo.core.env import VARIABLES
from octavo.core.observe_config import ObservabilityConfig
from octavo.core.options import ALIASES, part_fields
from octavo.core.params import SamplingParams

TARGET = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """# Settings

Made by `scripts/settings_reference.py` from the configuration's fields; do not edit by hand.

Every engine setting has three spellings: a flag of `octavo serve`, `octavo chat` and `octavo
generate` (`--max-model-len 4096`), a keyword of `LLM` and `AsyncLLM` (`max_model_len=4096`), and a
field of the dataclass named below. Server settings are flags of `octavo serve`; sampling parameters
are keywords of `SamplingParams`, flags of `chat` and `generate`, and fields of HTTP requests.
"""

ENVIRONMENT = "\n".join(
    [
        "\n## Environment\n",
        "`octavo env` shows which of these are set.\n",
        "| variable | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {variable.meaning} |" for name, variable in VARIABLES.items()),
        "",
    ]
)


def table(part: type, *, flags: bool) -> str:
    """One dataclass as a Markdown table."""
    rows = [f"\n## {part.__name__}\n", f"{(part.__doc__ or '').splitlines()[0]}\n"]
    rows += ["| setting | default | meaning |", "| --- | --- | --- |"]
    for item, _, doc in part_fields(part):
        name = f"--{item.name.replace('_', '-')}" if flags else item.name
        also = [alias for alias, target in ALIASES.items() if target == item.name]
        names = ", ".join(
            f"`{spelling}`"
            for spelling in (name, *(f"--{a.replace('_', '-')}" for a in also if flags))
        )
        rows.append(f"| {names} | {default(item)} | {doc.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def default(item: dataclasses.Field[object]) -> str:
    """The default as text."""
    if item.default is dataclasses.MISSING or item.default in (None, ()):
        return "none"
    shown = " ".join(item.default) if isinstance(item.default, tuple) else item.default
    return f"`{shown}`" if shown != "" else "none"


def main() -> int:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is out of date")
    args = parser.parse_args()
    parts = (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig)
    parts += (ServerConfig, SecurityConfig, LimitsConfig, ObservabilityConfig)
    text = HEAD + "".join(table(part, flags=True) for part in parts)
    text += table(SamplingParams, flags=False) + ENVIRONMENT
    if args.check:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != text:
            print(f"{TARGET} is out of date: run scripts/settings_reference.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
