"""Messages and tools of a request in the terms of chat templates and of `octavo.server.parsing`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from octavo.core.errors import ConfigError, InvalidParameter, UnsupportedParameter
from octavo.server.openai.schemas import (
    ChatCompletionRequest,
    Message,
    NamedTool,
    TemplateBody,
)
from octavo.server.parsing.tools import Tool, ToolUse
from octavo.server.state import ServerState
from octavo.tokenizer.chat_template import ChatTemplate

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PROBE = "octavo_probe"


def template_of(body: TemplateBody, state: ServerState) -> ChatTemplate:
    """The template that the request wants: its own, or the model's.

    Raises:
        RequestError: it may not bring one, or it is no template.
    """
    if body.chat_template is None:
        return state.chat_template
    if not state.config.trust_request_chat_template:
        raise UnsupportedParameter(
            "chat_template is not taken from requests by this server: leave it out, or start the "
            "server with --trust-request-chat-template",
            param="chat_template",
        )
    try:
        return ChatTemplate(body.chat_template, state.engine.tokenizer.special_tokens)
    except ConfigError as error:
        said = str(error).partition("; ")[0]
        raise InvalidParameter(said, param="chat_template") from None


def thinking_variables(template: ChatTemplate, wanted: bool) -> dict[str, Any]:
    """What a template is told of thinking; nothing if it does not ask."""
    return {"enable_thinking": wanted} if "enable_thinking" in (template.source or "") else {}


def effort_variables(body: TemplateBody, template: ChatTemplate) -> dict[str, Any]:
    """What a template is told of how much to think, in the words that it knows.

    Raises:
        UnsupportedParameter: it knows none.
    """
    effort = body.reasoning_effort
    if effort is None:
        return {}
    if "reasoning_effort" in (template.source or ""):
        return {"reasoning_effort": effort}
    variables = thinking_variables(template, effort != "none")
    if not variables and effort != "none":
        raise UnsupportedParameter(
            f"reasoning_effort is {effort!r}, but this model's chat template knows nothing of "
            "thinking: leave it out",
            param="reasoning_effort",
        )
    return variables


def tools_of(body: TemplateBody) -> list[Tool]:
    """The tools of a request."""
    return [
        Tool(
            name=item.function.name,
            description=item.function.description,
            parameters=item.function.parameters,
            strict=item.function.strict is True,
        )
        for item in body.tools or ()
    ]


def tool_use(body: ChatCompletionRequest) -> ToolUse:
    """What a request says of tools.

    Raises:
        InvalidParameter: the tools, or the choice among them, contradict themselves.
    """
    tools, choice = tools_of(body), body.tool_choice
    is_parallel = body.parallel_tool_calls is not False
    if choice is None:
        choice = "auto" if tools else "none"
    if isinstance(choice, str):
        return ToolUse(tools=tools, mode=choice, is_parallel=is_parallel)
    if isinstance(choice, NamedTool):
        only = [choice.function.name]
        return ToolUse(tools=tools, mode="required", only=only, is_parallel=False)
    subset = choice.allowed_tools
    names = [tool.function.name for tool in subset.tools]
    return ToolUse(tools=tools, mode=subset.mode, only=names, is_parallel=is_parallel)


def last_text(messages: Sequence[Message]) -> str:
    """The text of the last message."""
    content = messages[-1].content
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def plain_message(message: Message, index: int, template: ChatTemplate) -> dict[str, Any]:
    """A message as templates expect it: text parts joined, and no field that was not sent.

    Raises:
        InvalidParameter: there is no such role, or nothing in the message.
    """
    role, source = message.role, template.source or ""
    if role == "developer" and "developer" not in source:
        role = "system"  # the newer word for it, which most templates do not know
    elif role not in _ROLES and f"'{role}'" not in source and f'"{role}"' not in source:
        raise InvalidParameter(
            f"messages[{index}].role is {role!r}: use system, user, assistant or tool",
            param=f"messages[{index}].role",
        )
    content = message.content
    if content is None and not (role == "assistant" and message.tool_calls):
        raise InvalidParameter(
            f"messages[{index}].content is missing: use a string or a list of text parts",
            param=f"messages[{index}].content",
        )
    if not isinstance(content, str):
        content = "".join(part.text for part in content or ())
    plain: dict[str, Any] = {"role": role, "content": content}
    plain |= message.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        is_object = takes_objects(template.source or "")
        plain["tool_calls"] = [
            {
                **({} if call.id is None else {"id": call.id}),
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, is_object=is_object),
                },
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str, *, is_object: bool) -> Any:
    """Arguments as the template wants them; text that is no JSON object stays what it is."""
    if not is_object:
        return text
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


@lru_cache(maxsize=64)
def takes_objects(source: str) -> bool:
    """Whether a template takes the arguments of tool calls as objects; some want JSON text, which
    they put into the prompt as it is. Tried out, since nothing tells."""
    call = {
        "id": "call_00000",
        "type": "function",
        "function": {"name": "probe", "arguments": {_PROBE: "x"}},
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        text = ChatTemplate(source).render(messages, add_generation_prompt=False)
    except (InvalidParameter, ConfigError):
        return False
    return f"{{'{_PROBE}'" not in text
