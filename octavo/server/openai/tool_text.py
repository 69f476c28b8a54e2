"""Tools and tool calls as text, for models whose chat template does not know of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.server.parsing.formats import CallFormat
from octavo.server.parsing.tools import Tool

_INTRODUCTION = (
    "You can call functions. Each of the following lines describes one, with the JSON schema of "
    "its parameters:"
)
_HOW = "To call a function, answer in this form, and with nothing else:"


def with_tools_as_text(
    messages: Sequence[dict[str, Any]], tools: Sequence[Tool], form: CallFormat
) -> list[dict[str, Any]]:
    """The messages with the tools described in the first of them, calls spelled out as the model
    should write them, and results of tools said by the user."""
    if not tools and not any("tool_calls" in message for message in messages):
        return list(messages)
    spelled = [_spelled(message, form) for message in messages]
    if not tools:
        return spelled
    described = [json.dumps(tool.described()["function"], ensure_ascii=False) for tool in tools]
    example = _SPELLINGS[form]("FUNCTION", {"PARAMETER": "VALUE"})
    text = "\n".join([_INTRODUCTION, *described, _HOW, example])
    if spelled and spelled[0]["role"] == "system":
        first, *others = spelled
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *others]
    return [{"role": "system", "content": text}, *spelled]


def _spelled(message: Mapping[str, Any], form: CallFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
        }
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    functions = [call["function"] for call in calls]
    texts = [_SPELLINGS[form](function["name"], function["arguments"]) for function in functions]
    content = "\n".join([message["content"], *texts] if message["content"] else texts)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {
        "content": content
    }


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hermes(name: str, arguments: Any) -> str:
    call = f'{{"name": {json.dumps(name)}, "arguments": {_json(arguments)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _llama3(name: str, arguments: Any) -> str:
    return f'{{"name": {json.dumps(name)}, "parameters": {_json(arguments)}}}'


def _qwen3_coder(name: str, arguments: Any) -> str:
    items = arguments.items() if isinstance(arguments, dict) else ()
    values = "".join(f"<parameter={key}>\n{_json(value)}\n</parameter>\n" for key, value in items)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


_SPELLINGS: dict[CallFormat, Callable[[str, Any], str]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "qwen3_coder": _qwen3_coder,
}
