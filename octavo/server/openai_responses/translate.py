"""From requests of the Responses API to those of chat completions."""

from __future__ import annotations

from typing import Any

from octavo.core.errors import InvalidParameter
from octavo.server import dialect
from octavo.server.openai import schemas as chat
from octavo.server.openai_responses.items import messages_of
from octavo.server.openai_responses.schemas import (
    AllowedFunctions,
    FunctionChoice,
    FunctionTool,
    ResponsesRequest,
    TextFormat,
)

NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""What parameters of chat completions are called here."""

LOGPROBS = "message.output_text.logprobs"


def translated(body: ResponsesRequest) -> chat.ChatCompletionRequest:
    """The same request for chat completions.

    Raises:
        RequestError: it has no such form there.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter(
            "stream_options is set, but stream is not true", param="stream_options"
        )
    wants_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not wants_logprobs:
        raise InvalidParameter(
            f"top_logprobs is set, but include has no {LOGPROBS!r}", param="top_logprobs"
        )
    return dialect.chat_body(
        body,
        **_tool_fields(body),
        messages=messages_of(body),
        max_completion_tokens=body.max_output_tokens,
        stop=body.stop,
        logprobs=wants_logprobs,
        top_logprobs=body.top_logprobs,
        response_format=_format(body),
        reasoning_effort=body.reasoning and body.reasoning.effort,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _tool_fields(body: ResponsesRequest) -> dict[str, Any]:
    choice: Any = body.tool_choice
    if isinstance(choice, FunctionChoice):
        choice = dialect.named_tool(choice.name)
    elif isinstance(choice, AllowedFunctions):
        names = [dialect.named_tool(tool.name) for tool in choice.tools]
        subset = chat.ToolSubset.model_construct(mode=choice.mode, tools=names)
        choice = chat.AllowedTools(type="allowed_tools", allowed_tools=subset)
    tools = [
        dialect.tool(tool.name, tool.description, tool.parameters, tool.strict)
        for tool in body.tools or ()
        if isinstance(tool, FunctionTool)
    ]
    return {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
    }


def _format(body: ResponsesRequest) -> chat.ResponseFormat | None:
    given = None if body.text is None else body.text.format
    if given is None:
        return None
    schema = None
    if given.type == "json_schema":
        _check_schema(given)
        schema = chat.JsonSchema.model_construct(name=given.name, schema_=given.schema_)
    elif given.schema_ is not None:
        raise InvalidParameter(
            f"text.format has a schema, but its type is {given.type!r}: use 'json_schema'",
            param="text.format",
        )
    return chat.ResponseFormat.model_construct(type=given.type, json_schema=schema)


def _check_schema(given: TextFormat) -> None:
    for name, value in (("name", given.name), ("schema", given.schema_)):
        if value is None:
            raise InvalidParameter(
                f"text.format is of type 'json_schema', but has no {name}",
                param=f"text.format.{name}",
            )
