"""The ``octavo`` command: one subcommand a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from octavo import __version__
from octavo.core.errors import EngineError

COMMANDS = {
    "serve": "serve a model over the OpenAI API",
    "chat": "talk with a model in the terminal",
    "generate": "complete a prompt, or a JSON-lines file of them",
    "batch": "serve a file of requests in OpenAI's batch format, without a server",
    "trace": "record what every step does, as a timeline for Perfetto",
    "top": "watch a server's cache, requests and rates at the terminal",
    "bench": "measure where the time goes",
    "plan": "what fits on an accelerator, and how fast, before anything is loaded",
    "eval": "measure how good the model is as it is served",
    "env": "show what this machine has, and what is made of it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 0 on success, 1 on an error that was explained, 130 on
    Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="octavo", description="LLM inference and serving around a paged KV cache."
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == chosen:  # the others' imports and flags would only cost time
            module = import_module(f"octavo.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        status: int = args.run(args)
    except EngineError as error:
        print(f"octavo: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
