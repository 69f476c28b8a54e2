"""From requests of the Messages API to those of chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from octavo.core.errors import InvalidParameter
from octavo.server import dialect
from octavo.server.anthropic.schemas import (
    ConversationBody,
    InputMessage,
    InputTextBlock,
    InputThinkingBlock,
    InputToolResultBlock,
    InputToolUseBlock,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from octavo.server.openai import schemas as chat
from octavo.server.openai.conversation import thinking_variables
from octavo.server.state import ServerState

NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
"""What parameters of chat completions are called here."""

_KINDS: dict[str, tuple[type[BaseModel], ...]] = {
    "assistant": (InputTextBlock, InputThinkingBlock, InputToolUseBlock),
    "user": (InputTextBlock, InputToolResultBlock),
    "system": (InputTextBlock,),
}
"""Who may say what."""


def translated(body: MessagesRequest, state: ServerState) -> chat.ChatCompletionRequest:
    """The same request for chat completions, but for the limit of the output.

    Raises:
        RequestError: the conversation has no such form there.
    """
    return dialect.chat_body(
        body,
        **template_fields(body, state),
        stop=body.stop_sequences,
        response_format=_format(body),
    )


def template_fields(body: ConversationBody, state: ServerState) -> dict[str, Any]:
    """The fields of a chat that make its prompt.

    Raises:
        RequestError: the conversation has no such form there.
    """
    messages = [] if body.system is None else [_message("system", content=_text(body.system))]
    for number, message in enumerate(body.messages):
        messages += _translated(message, f"messages[{number}]")
    thinking = thinks(body)
    variables = {} if thinking is None else thinking_variables(state.chat_template, thinking)
    choice = body.tool_choice
    return {
        "messages": messages,
        "reasoning_effort": body.output_config and body.output_config.effort,
        "chat_template_kwargs": {**variables, **(body.chat_template_kwargs or {})},
        "continue_final_message": bool(messages) and messages[-1].role == "assistant",
        "tools": [_tool(tool) for tool in body.tools or () if isinstance(tool, MessagesTool)],
        "tool_choice": None if choice is None else _choice(choice),
        "parallel_tool_calls": choice is None or not choice.disable_parallel_tool_use,
    }


def thinks(body: ConversationBody) -> bool | None:
    """Whether the model is to think; None if it may choose."""
    kind = "disabled" if body.thinking is None else body.thinking.type
    return None if kind == "adaptive" else kind == "enabled"


def _tool(tool: MessagesTool) -> chat.ToolDefinition:
    return dialect.tool(tool.name, tool.description, tool.input_schema, tool.strict)


def _choice(choice: MessagesToolChoice) -> Any:
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise InvalidParameter(
            "tool_choice is of type 'tool', but has no name: say which", param="tool_choice.name"
        )
    return dialect.named_tool(choice.name)


def _translated(message: InputMessage, param: str) -> list[chat.Message]:
    role, content = message.role, message.content
    if isinstance(content, str):
        return [_message(role, content=content)]
    for number, block in enumerate(content):
        if not isinstance(block, _KINDS[role]):
            where = f"{param}.content[{number}].type"
            raise InvalidParameter(
                f"{where} is {block.type!r}, which a message of the {role} cannot have: "
                "thinking and tool_use are the assistant's, tool_result is the user's",
                param=where,
            )
    return [_said(content)] if role == "assistant" else _heard(role, content)


def _said(blocks: Sequence[BaseModel]) -> chat.Message:
    """What the assistant has said, thought and called."""
    thoughts = [block.thinking for block in blocks if isinstance(block, InputThinkingBlock)]
    calls = [
        dialect.tool_call(block.name, json.dumps(block.input, ensure_ascii=False), block.id)
        for block in blocks
        if isinstance(block, InputToolUseBlock)
    ]
    return _message(
        "assistant",
        content=_text(blocks),
        reasoning_content="".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _heard(role: str, blocks: Iterable[BaseModel]) -> list[chat.Message]:
    """What the assistant was told: results of tools are messages of their own."""
    found = []
    for is_result, group in groupby(blocks, lambda b: isinstance(b, InputToolResultBlock)):
        if is_result:
            found += [_result(block) for block in group if isinstance(block, InputToolResultBlock)]
        else:
            found.append(_message(role, content=_text(list(group))))
    return found or [_message(role, content="")]


def _result(block: InputToolResultBlock) -> chat.Message:
    text = "" if block.content is None else _text(block.content)
    if block.is_error:
        text = f"Error: {text}"
    return _message("tool", content=text, tool_call_id=block.tool_use_id)


def _message(role: str, **fields: Any) -> chat.Message:
    return chat.Message.model_construct(role=role, **fields)


def _text(given: str | Sequence[BaseModel]) -> str:
    if isinstance(given, str):
        return given
    return "".join(block.text for block in given if isinstance(block, InputTextBlock))


def _format(body: MessagesRequest) -> chat.ResponseFormat | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    schema = chat.JsonSchema.model_construct(name="answer", schema_=wanted.schema_)
    return chat.ResponseFormat.model_construct(type="json_schema", json_schema=schema)
