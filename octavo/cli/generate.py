"""``octavo generate``: one prompt, or a JSON-lines file of prompts, to completions.

Each input line is a JSON object with ``prompt`` (text or token ids) or ``messages`` (a chat), and
any sampling parameter by its name. Each output line repeats the input's ``id`` (its line number
without one) and holds the completions in input order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.sampling import (
    add_engine_arguments,
    add_sampling_arguments,
    engine_options,
    sampling_options,
)
from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams

if TYPE_CHECKING:
    from octavo.front.outputs import RequestOutput
    from octavo.llm import LLM

_PARAMETERS = frozenset(item.name for item in dataclasses.fields(SamplingParams))
_OTHERS = frozenset({"id", "prompt", "messages"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", help="text to complete; - reads it from standard input")
    source.add_argument("--input", type=Path, help="JSON-lines file of prompts or messages")
    parser.add_argument("--output", type=Path, help="JSON-lines file for the completions")
    parser.add_argument("--chat", action="store_true", help="take the prompt as a user's message")
    add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Completes the prompt or the file; status 1 if any completion ended with an error."""
    tasks = _read_tasks(args)
    from octavo.llm import LLM

    llm = LLM(**engine_options(args))
    prompts = [_prompt(llm, task) for task in tasks]
    params = [_params(llm, task, sampling_options(args)) for task in tasks]
    outputs = llm.generate(prompts, params, progress=sys.stderr.isatty())
    if args.input is None and args.output is None:
        print("\n".join(completion.text for completion in outputs[0].outputs))
    else:
        _write(args.output, tasks, outputs)
    return int(any(completion.error for output in outputs for completion in output.outputs))


def _read_tasks(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.input is None:
        text = sys.stdin.read() if args.prompt == "-" else args.prompt
        if args.chat:
            return [{"id": 1, "messages": [{"role": "user", "content": text}]}]
        return [{"id": 1, "prompt": text}]
    tasks = []
    with open(args.input, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                tasks.append(_task(args.input, number, line))
    return tasks


def _task(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    try:
        task = json.loads(line)
    except ValueError as error:
        raise InvalidParameter(f"{where} is not valid JSON: {error}") from None
    if not isinstance(task, dict) or ("prompt" in task) == ("messages" in task):
        raise InvalidParameter(f"{where}: use an object with either prompt or messages")
    unknown = sorted(task.keys() - _PARAMETERS - _OTHERS)
    if unknown:
        raise InvalidParameter(f"{where}: unknown field {unknown[0]!r}", param=unknown[0])
    return {"id": number, **task}


def _prompt(llm: LLM, task: dict[str, Any]) -> Any:
    return llm.render_chat(task["messages"]) if "messages" in task else task["prompt"]


def _params(llm: LLM, task: dict[str, Any], flags: dict[str, Any]) -> SamplingParams:
    own = {name: value for name, value in task.items() if name in _PARAMETERS}
    if "logit_bias" in own:
        own["logit_bias"] = {int(token): bias for token, bias in own["logit_bias"].items()}
    return llm.default_sampling_params(**{**flags, **own})


def _write(path: Path | None, tasks: list[dict[str, Any]], outputs: list[RequestOutput]) -> None:
    stream = sys.stdout if path is None else open(path, "w", encoding="utf-8")  # noqa: SIM115
    try:
        for task, output in zip(tasks, outputs, strict=True):
            stream.write(json.dumps(_record(task, output), ensure_ascii=False) + "\n")
    finally:
        if path is not None:
            stream.close()


def _record(task: dict[str, Any], output: RequestOutput) -> dict[str, Any]:
    return {
        "id": task["id"],
        "completions": [
            {
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                **({"error": completion.error} if completion.error else {}),
            }
            for completion in output.outputs
        ],
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": sum(len(c.token_ids) for c in output.outputs),
            "cached_tokens": output.num_cached_tokens,
        },
    }
