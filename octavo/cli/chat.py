"""``octavo chat``: a conversation in the terminal, with the model in this process."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Console
from rich.markup import escape

from octavo.cli.sampling import (
    add_engine_arguments,
    add_sampling_arguments,
    engine_options,
    sampling_options,
)
from octavo.core.errors import InvalidParameter, RequestError

_HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    parser.add_argument("--system", help="system message to begin with", default=None)
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Talks until the user leaves."""
    console = Console(highlight=False)
    with console.status(f"loading {args.model}"):
        from octavo.llm import LLM

        llm = LLM(**engine_options(args))
    console.print(f"[bold]{escape(args.model)}[/bold] is ready. {_HELP}.", style="dim")
    options = {"max_tokens": None, **sampling_options(args)}
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    while True:
        try:
            text = console.input("[bold green]you>[/bold green] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        except UnicodeDecodeError as error:
            raise InvalidParameter(f"standard input is no text: {error}") from None
        if text == "/exit":
            return 0
        if text == "/clear":
            messages = list(opening)
            continue
        if text:
            messages.append({"role": "user", "content": text})
            _answer(console, llm, messages, options)


def _answer(
    console: Console, llm: Any, messages: list[dict[str, str]], options: dict[str, Any]
) -> None:
    """Streams one answer and adds it to the conversation; a refused question is taken back."""
    began, first, tokens, cached, answer = time.perf_counter(), None, 0, 0, ""
    try:
        prompt = llm.render_chat(messages)
        params = llm.default_sampling_params(**options)
        for delta in llm.stream(prompt, params):
            first = first or time.perf_counter()
            tokens += len(delta.token_ids)
            cached = delta.num_cached_tokens or cached
            answer += delta.text
            console.print(delta.text, end="", markup=False, soft_wrap=True)
    except RequestError as error:
        console.print(escape(str(error)), style="red")
        messages.pop()
        return
    except KeyboardInterrupt:
        pass  # the answer so far stays in the conversation
    messages.append({"role": "assistant", "content": answer})
    end = time.perf_counter()
    waited, rate = (first or end) - began, tokens / max(end - (first or began), 1e-9)
    console.print(
        f"\n{tokens} tokens, first after {waited:.2f} s, {rate:.1f} tokens/s, "
        f"{cached} of {len(prompt)} prompt tokens from the cache",
        style="dim",
    )
