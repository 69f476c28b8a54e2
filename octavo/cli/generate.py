"""``octavo generate``: one prompt, or a JSON-lines file of prompts, to completions.

Each input line is a JSON object with ``prompt`` (text or token ids) or ``messages`` (a chat), and
any sampling parameter by its name. Each output line repeats the input's ``id`` (its line number
without one) and holds the completions in input order. Whatever is wrong with a line is told before
the first token is generated, with the line's number.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import reprlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import from_json

from octavo.cli.sampling import (
    add_engine_arguments,
    add_sampling_arguments,
    engine_options,
    sampling_options,
)
from octavo.core.errors import ConfigError, InvalidParameter, RequestError
from octavo.core.params import SamplingParams, Structured
from octavo.core.types import TokenId
from octavo.front.embedding import unit_vector
from octavo.scheduler.door import check_fits

if TYPE_CHECKING:
    from octavo.front.outputs import RequestOutput
    from octavo.llm import LLM

_PARAMETERS = frozenset(item.name for item in dataclasses.fields(SamplingParams))
_OTHERS = frozenset({"id", "prompt", "messages"})
_FORMS: dict[str, tuple[Any, str]] = {
    "prompt": (str | list, "text or a list of token ids"),
    "messages": (list, "a list of messages"),
    "logit_bias": (dict | None, "an object of token ids and numbers"),
    "structured": (dict | None, "an object with one of json, regex, choice, grammar"),
}
_MAX_ID_DIGITS = 10

Task: TypeAlias = dict[str, Any]
"""An input line, with an ``id``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_engine_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", help="text to complete; - reads it from standard input")
    source.add_argument("--input", type=Path, help="JSON-lines file of prompts or messages")
    parser.add_argument("--output", type=Path, help="JSON-lines file for the completions")
    parser.add_argument("--chat", action="store_true", help="take the prompt as a user's message")
    add_sampling_arguments(parser)
    form = parser.add_argument_group(
        "The form that every output must have"
    ).add_mutually_exclusive_group()
    form.add_argument("--json-schema", type=Path, metavar="FILE", help="JSON by this schema")
    form.add_argument("--regex", help="text that this regular expression matches")
    form.add_argument("--choice", nargs="+", metavar="TEXT", help="one of these strings")
    form.add_argument("--grammar", type=Path, metavar="FILE", help="text of this grammar")


def run(args: argparse.Namespace) -> int:
    """Completes the prompt or the file; status 1 if any completion ended with an error."""
    tasks = _read_tasks(args)
    if args.output is not None:
        _check_writable(args.output)
    from octavo.llm import LLM

    flags = {**sampling_options(args), **_form(args)}
    llm = LLM(**engine_options(args))
    prompts, params = [], []
    for where, task in tasks:
        try:
            wanted = _params(llm, task, flags)
            prompts.append(_prompt(llm, task, wanted))
        except RequestError as error:
            raise type(error)(f"{where}{error}", param=error.param) from None
        params.append(wanted)
    outputs = llm.generate(prompts, params, progress=sys.stderr.isatty())
    if args.input is None and args.output is None:
        print("\n".join(completion.text for completion in outputs[0].outputs))
    else:
        _write(args.output, [task for _, task in tasks], outputs)
    return int(any(completion.error for output in outputs for completion in output.outputs))


def _form(args: argparse.Namespace) -> dict[str, Structured]:
    """The form that the flags ask for, if they do."""
    if args.json_schema is not None:
        return {"structured": Structured.json(_file_text("--json-schema", args.json_schema))}
    if args.grammar is not None:
        return {"structured": Structured.grammar(_file_text("--grammar", args.grammar))}
    if args.regex is not None:
        return {"structured": Structured.regex(args.regex)}
    return {} if args.choice is None else {"structured": Structured.choice(args.choice)}


def _file_text(flag: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{flag} {path} cannot be read: {reason}") from error


def _read_tasks(args: argparse.Namespace) -> list[tuple[str, Task]]:
    """What to complete, and the words with which a complaint about it begins."""
    if args.input is None:
        text = _standard_input() if args.prompt == "-" else args.prompt
        if args.chat:
            return [("", {"id": 1, "messages": [{"role": "user", "content": text}]})]
        return [("", {"id": 1, "prompt": text})]
    tasks = []
    try:
        lines = args.input.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"--input {args.input} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{args.input}, line {number}: "
            tasks.append((where, {"id": number, **_task(where, line)}))
    return tasks


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"standard input is no text: {error}", param="prompt") from None


def _task(where: str, line: bytes) -> Task:
    try:
        task = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidParameter(f"{where}not valid JSON: {error}") from None
    if not isinstance(task, dict) or ("prompt" in task) == ("messages" in task):
        raise InvalidParameter(f"{where}use an object with either prompt or messages")
    unknown = sorted(task.keys() - _PARAMETERS - _OTHERS)
    if unknown:
        raise InvalidParameter(f"{where}unknown field {unknown[0]!r}", param=unknown[0])
    for name, (kinds, wanted) in _FORMS.items():
        if name in task and not isinstance(task[name], kinds):
            shown = reprlib.repr(task[name])
            raise InvalidParameter(f"{where}{name} is {shown}: use {wanted}", param=name)
    return task


def _prompt(llm: LLM, task: Task, params: SamplingParams) -> list[TokenId]:
    """Token ids that the engine will take."""
    from octavo.llm import encode_prompt

    given = llm.render_chat(task["messages"]) if "messages" in task else task["prompt"]
    _, token_ids = encode_prompt(given, llm.tokenizer, llm.info.spec.vocab_size)
    plan = llm.info.cache_plan
    check_fits(
        len(token_ids),
        max_model_len=llm.info.max_model_len,
        capacity=plan.num_blocks * plan.block_size,
        generates=params.max_tokens != 0,
    )
    return list(token_ids)


def _params(llm: LLM, task: Task, flags: dict[str, Any]) -> SamplingParams:
    own = {name: value for name, value in task.items() if name in _PARAMETERS and value is not None}
    if "logit_bias" in own:
        own["logit_bias"] = {_token_id(key): bias for key, bias in own["logit_bias"].items()}
    if "structured" in own:
        own["structured"] = _structured(own["structured"])
    params = llm.default_sampling_params(**{**flags, **own})
    llm.check(params)
    return params


def _structured(given: dict[str, Any]) -> Structured:
    makers: dict[str, Callable[[Any], Structured]] = {
        "json": Structured.json,
        "regex": Structured.regex,
        "choice": Structured.choice,
        "grammar": Structured.grammar,
    }
    if len(given) != 1 or not given.keys() <= makers.keys():
        raise InvalidParameter(
            f"structured has {sorted(given)}: give exactly one of {', '.join(makers)}",
            param="structured",
        )
    ((kind, value),) = given.items()
    return makers[kind](value)


def _token_id(key: str) -> TokenId:
    if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS):
        raise InvalidParameter(f"logit_bias has the key {key!r}: use token ids", param="logit_bias")
    return int(key)


def _check_writable(path: Path) -> None:
    """Tells now what would be in the way when everything has been generated."""
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error.strerror}") from error


def _write(path: Path | None, tasks: list[Task], outputs: list[RequestOutput]) -> None:
    stream = sys.stdout if path is None else open(path, "w", encoding="utf-8")  # noqa: SIM115
    try:
        for task, output in zip(tasks, outputs, strict=True):
            stream.write(json.dumps(_record(task, output), ensure_ascii=False) + "\n")
    finally:
        if path is not None:
            stream.close()


def _record(task: Task, output: RequestOutput) -> dict[str, Any]:
    record = {
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
    if output.embedding is not None:
        record["embedding"] = unit_vector(output.embedding).tolist()
    return record
