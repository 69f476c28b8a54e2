"""Chat templates: a list of messages to the prompt that the model was trained on.

Templates are Jinja source from a model's files, written for the environment that `transformers`
gives them; this is the same environment. They are code of unknown origin, so they run in Jinja's
sandbox and see nothing but plain values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.core.errors import ConfigError, InvalidParameter

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A template; its source is compiled once, however often this is made.

    ``special_tokens`` are the names that it may use (``bos_token``, ...).
    ``source`` is None for a model without a template: rendering is then refused.

    Raises:
        ConfigError: the source is no valid template.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._template = None if source is None else _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for these messages, special tokens spelled out: encode it with
        ``add_special_tokens=False``. ``variables`` are further names for the template.

        Raises:
            InvalidParameter: there is no template, or it refuses these messages.
        """
        if self._template is None:
            raise InvalidParameter(
                "this model has no chat template: start the server with --chat-template FILE, or "
                "use the completions API with a prompt of your own",
                param="messages",
            )
        if not messages:
            raise InvalidParameter("messages is empty: send at least one", param="messages")
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **{name: _plain(value) for name, value in variables.items()},
                    "messages": [_message(message) for message in messages],
                    "tools": _plain(tools) if tools else None,
                    "documents": _plain(documents) if documents else None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except InvalidParameter:
            raise
        except TemplateError as error:
            raise InvalidParameter(
                f"the chat template refused these messages: {error.message}", param="messages"
            ) from None
        except Exception as error:  # the template's own operations on what the client sent
            raise InvalidParameter(
                "the chat template cannot be applied to these messages: "
                f"{type(error).__name__}: {error}",
                param="messages",
            ) from None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of a message for the template: fields that are None are left out, and reasoning is
    there under each name that templates read."""
    if not isinstance(message, Mapping):
        raise InvalidParameter(
            f"messages holds a {type(message).__name__}: use objects with role and content",
            param="messages",
        )
    plain = {key: _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING_FIELDS if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """Copy made of JSON types alone, so that a template can call nothing on it that matters."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise InvalidParameter(
        f"messages holds a value of type {type(value).__name__}: use JSON values", param="messages"
    )


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template is not valid Jinja (line {error.lineno}: {error.message}); "
            "pass another one with --chat-template FILE"
        ) from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControls, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
