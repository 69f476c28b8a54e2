"""``octavo eval``: how good a model is as it is served here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from octavo.cli.sampling import add_engine_arguments, engine_options
from octavo.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One measure today; the engine's flags choose what is measured."""
    measures = parser.add_subparsers(dest="measure", metavar="MEASURE", required=True)
    perplexity = measures.add_parser(
        "perplexity",
        help="how well the model predicts a text",
        description="How well the model predicts a text; lower is better, and two settings are "
        "compared on the same text.",
    )
    perplexity.add_argument(
        "--file", type=Path, required=True, metavar="FILE", help="the text, UTF-8"
    )
    perplexity.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="tokens that are predicted together; 512, or the context's length if that is less",
    )
    perplexity.add_argument("--max-tokens", type=int, metavar="N", help="read no more than this")
    perplexity.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_arguments(perplexity)


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    try:
        text = args.file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--file {args.file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--file {args.file} is not UTF-8 text: {error}") from error
    from octavo.bench import perplexity
    from octavo.llm import LLM

    llm = LLM(**engine_options(args))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("perplexity", total=1.0)
        result = perplexity.measure(
            llm,
            text,
            window=args.window,
            max_tokens=args.max_tokens,
            on_progress=lambda share: progress.update(task, completed=share),
        )
    info = llm.info
    record = {
        "model": info.model,
        "weights": info.weights,
        "kv_cache": info.kv_dtype,
        "perplexity": round(result.value, 4),
        "standard_error": round(result.standard_error, 4),
        "tokens": result.num_tokens,
        "windows": result.num_windows,
    }
    if args.json:
        print(json.dumps(record))
    else:
        print(
            f"perplexity {record['perplexity']} ± {record['standard_error']} over "
            f"{result.num_tokens:,} tokens in {result.num_windows} windows; weights "
            f"{record['weights']}, KV cache {info.kv_dtype}"
        )
    return 0
