"""What every endpoint needs: the engine, the model's names, templates and limits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from octavo.core.config import ServerConfig
from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.types import TokenId
from octavo.front.async_engine import AsyncEngine
from octavo.server.errors import UnknownModel
from octavo.tokenizer.chat_template import ChatTemplate


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One server; kept in ``app.state.server``."""

    engine: AsyncEngine
    config: ServerConfig
    model_names: tuple[str, ...]
    """Names that clients may use; the first is the one that answers carry."""
    generation_defaults: dict[str, float | int]
    chat_template: ChatTemplate
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_model_len(self) -> int:
        """Longest prompt and output together, in tokens."""
        return self.engine.info.max_model_len

    def check_model(self, name: str | None) -> str:
        """The name to answer with.

        Raises:
            UnknownModel: this server does not serve that model.
        """
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise UnknownModel(
                f"model {name!r} does not exist here: use {' or '.join(self.model_names)}",
                param="model",
            )
        return name

    def check_prompt(self, token_ids: list[TokenId], param: str) -> None:
        """Refuses prompts that no request could be made of.

        Raises:
            InvalidParameter: it is empty, or holds an id that the model does not have.
            ContextTooLong: it leaves no room for one token of output.
        """
        if not token_ids:
            raise InvalidParameter(f"{param} is empty: send at least one token", param=param)
        vocab = self.engine.info.spec.vocab_size
        wrong = next((token for token in token_ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise InvalidParameter(
                f"{param} has token id {wrong}: this model's are 0 to {vocab - 1}", param=param
            )
        if len(token_ids) + 1 > self.max_model_len:
            raise ContextTooLong(
                f"{param} has {len(token_ids)} tokens, and one token of output needs room too, but "
                f"this model's context is {self.max_model_len} tokens: shorten it to "
                f"{self.max_model_len - 1} or less",
                param=param,
            )


def state_of(request: Request) -> ServerState:
    """The server that a request came to."""
    state: ServerState = request.app.state.server
    return state


def rendered_chat(
    state: ServerState, messages: list[dict[str, Any]], template: str | None, **options: Any
) -> list[TokenId]:
    """The prompt of a conversation, as token ids."""
    if not messages:
        raise InvalidParameter("messages is empty: send at least one message", param="messages")
    tokenizer = state.engine.tokenizer
    chosen = state.chat_template
    if template is not None:
        chosen = ChatTemplate(template, tokenizer.special_tokens)
    text = chosen.render(messages, **options)
    return tokenizer.encode(text, add_special_tokens=False)
