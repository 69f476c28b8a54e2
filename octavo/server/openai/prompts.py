"""From what a client wrote to the token ids that the model sees, with the limits checked.

Pure functions of a request and the server's state: a large request runs them in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.types import TokenId
from octavo.server.openai.conversation import (
    effort_variables,
    plain_message,
    template_of,
    tools_of,
)
from octavo.server.openai.schemas import CompletionRequest, Message, TemplateBody
from octavo.server.openai.tool_text import with_tools_as_text
from octavo.server.state import ServerState

Result = TypeVar("Result")

MAX_PROMPTS = 1024
_TEMPLATE_NAMES = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "raise_exception"}
)
_QUICK_BYTES = 16 << 10
"""Bodies up to this size take about a millisecond: not worth a thread."""


async def off_loop(num_bytes: int, work: Callable[..., Result], *args: Any) -> Result:
    """Runs ``work`` in a thread if the request is so large that others would wait for it."""
    if num_bytes <= _QUICK_BYTES:
        return work(*args)
    return await asyncio.to_thread(work, *args)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body that holds texts, and what may be in it."""

    name: str
    most: int = MAX_PROMPTS
    """Texts at most."""
    num_output_tokens: int = 1
    """Tokens that must find room after each of them."""


def encode_prompts(body: CompletionRequest, state: ServerState) -> list[list[TokenId]]:
    """The prompt field, in any of its four forms, as token ids of each prompt.

    Raises:
        RequestError: there is no prompt, or one of them cannot be served.
    """
    field = Field("prompt", num_output_tokens=0 if body.max_tokens == 0 else 1)
    return encode_texts(body.prompt, field, state, special=body.add_special_tokens is not False)


def encode_texts(
    given: str | list[str] | list[int] | list[list[int]],
    field: Field,
    state: ServerState,
    *,
    special: bool = True,
) -> list[list[TokenId]]:
    """A text, a list of token ids, or a list of either, as token ids of each.

    Args:
        special: texts get the tokens that the model expects around them.

    Raises:
        RequestError: there is none, or one of them cannot be served.
    """
    tokenizer, name = state.engine.tokenizer, field.name
    if isinstance(given, str):
        texts = [tokenizer.encode(given, special)]
    elif given and isinstance(given[0], int):
        texts = [given]
    elif not 1 <= len(given) <= field.most:
        raise InvalidParameter(
            f"{name} is a list of {len(given)}: send 1 to {field.most}", param=name
        )
    elif isinstance(given[0], str):
        texts = tokenizer.encode_batch(given, special)
    else:
        texts = cast("list[list[TokenId]]", given)
    for number, token_ids in enumerate(texts):
        shown = name if len(texts) == 1 else f"{name}[{number}]"
        _check(token_ids, shown, state, field.num_output_tokens)
    return texts


def encode_chat(
    messages: Sequence[Message],
    body: TemplateBody,
    state: ServerState,
    *,
    shows_tools: bool = True,
) -> list[TokenId]:
    """A conversation as token ids, of any length.

    Args:
        shows_tools: the model is told of the tools.

    Raises:
        RequestError: there is no message, or the model's template cannot express them.
    """
    text = chat_text(messages, body, state, shows_tools=shows_tools)
    return _tokens(text, body, state)


def chat_text(
    messages: Sequence[Message],
    body: TemplateBody,
    state: ServerState,
    *,
    shows_tools: bool = True,
) -> str:
    """A conversation as the model sees it.

    Args:
        shows_tools: the model is told of the tools.

    Raises:
        RequestError: there is no message, or the model's template cannot express them.
    """
    if not messages:
        raise InvalidParameter("messages is empty: send at least one", param="messages")
    variables = body.chat_template_kwargs or {}
    taken = next((name for name in variables if name in _TEMPLATE_NAMES), None)
    if taken is not None:
        raise InvalidParameter(
            f"chat_template_kwargs has {taken!r}, which is set by other parameters: leave it out",
            param="chat_template_kwargs",
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message and add_generation_prompt are both true: the answer either "
            "goes on with the last message, or is a new one",
            param="continue_final_message",
        )
    template = template_of(body, state)
    tools = tools_of(body) if shows_tools else []
    plain = [plain_message(message, index, template) for index, message in enumerate(messages)]
    form = state.answer_format(template)
    if not form.shows_tools:
        plain = with_tools_as_text(plain, tools, form.calls)
    begins_answer = body.add_generation_prompt is not False and not body.continue_final_message
    text = template.render(
        plain,
        tools=[tool.described() for tool in tools] or None,
        add_generation_prompt=begins_answer,
        **{**effort_variables(body, template), **variables},
    )
    return _open_ended(text, plain[-1]["content"]) if body.continue_final_message else text


def _open_ended(text: str, last: str) -> str:
    """A rendered conversation without what the template puts after its last message."""
    found = text.rfind(last.strip())
    if not last.strip() or found < 0:
        what = "is not in the prompt as it was written" if last.strip() else "is empty"
        raise InvalidParameter(
            f"the last message {what}, so that no answer can go on with it: end with another one",
            param="messages",
        )
    # Templates may strip what they are given.
    as_sent = last.lstrip()
    kept = as_sent if text.startswith(as_sent, found) else as_sent.rstrip()
    return text[: found + len(kept)]


def _tokens(text: str, body: TemplateBody, state: ServerState) -> list[TokenId]:
    # Templates spell out the special tokens, so that adding them is the exception.
    return state.engine.tokenizer.encode(text, body.add_special_tokens is True)


def chat_tokens(text: str, body: TemplateBody, state: ServerState) -> list[TokenId]:
    """A conversation from `chat_text` as token ids that the model can answer.

    Raises:
        RequestError: the conversation is too long.
    """
    token_ids = _tokens(text, body, state)
    _check(token_ids, "messages", state)
    return token_ids


def _check(
    token_ids: Sequence[TokenId], param: str, state: ServerState, num_output_tokens: int = 1
) -> None:
    """Refuses prompts that no request could be made of."""
    if not token_ids:
        raise InvalidParameter(f"{param} is empty: send at least one token", param=param)
    state.check_token_ids(token_ids, param)
    limit = state.max_model_len
    room = limit - num_output_tokens
    if len(token_ids) > room:
        also = ", and one token of output needs room too" if num_output_tokens else ""
        raise ContextTooLong(
            f"{param} has {len(token_ids)} tokens{also}, but this model's context is {limit} "
            f"tokens: shorten it to {room} or less",
            param=param,
        )
