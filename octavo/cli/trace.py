"""``octavo trace``: completes prompts and writes what every step did as a Chrome trace."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from octavo.cli.sampling import (
    add_engine_arguments,
    add_sampling_arguments,
    engine_options,
    sampling_options,
)
from octavo.core.errors import ConfigError

_SHARED = "You answer questions about books, briefly and in plain words. " * 12
_MIXED = (
    "Once upon a time",
    _SHARED + "What is an octavo?",
    _SHARED + "What is a folio?",
    "List the planets and say something about each of them. " * 40,
    "def fibonacci(n):",
)
"""Short and long prompts, two of which begin alike."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="text file with a prompt on each line; a small mixed load without it",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("trace.json"),
        metavar="FILE",
        help="where to write the trace [%(default)s]",
    )
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Records and writes; status 1 if any completion ended with an error."""
    prompts = _read(args.prompts) if args.prompts is not None else list(_MIXED)
    try:
        file = args.output.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {args.output} cannot be written: {error.strerror}") from error
    with file:
        from octavo.llm import LLM
        from octavo.timeline.chrome import to_chrome

        llm = LLM(**engine_options(args))
        params = llm.default_sampling_params(**{"max_tokens": 32, **sampling_options(args)})
        with llm.timeline() as steps:
            outputs = llm.generate(prompts, params, progress=sys.stderr.isatty())
        json.dump(to_chrome(steps), file, separators=(",", ":"))
    num_tokens = sum(step.num_tokens for step in steps)
    print(
        f"{args.output}: {len(steps)} steps, {num_tokens} tokens computed, {len(prompts)} prompts; "
        "open it in Perfetto, in chrome://tracing, or on a server's page /replay"
    )
    return int(any(completion.error for output in outputs for completion in output.outputs))


def _read(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--prompts {path} cannot be read: {reason}") from error
    prompts = [line for line in text.split("\n") if line.strip()]
    if not prompts:
        raise ConfigError(f"--prompts {path} has no prompt: write one on each line")
    return prompts
