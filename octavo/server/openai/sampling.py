"""From request fields to `SamplingParams`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.params import SamplingParams
from octavo.server.openai.schemas import SamplingBody
from octavo.server.state import ServerState

_SPECIAL = frozenset({"logprobs", "max_tokens", "logit_bias", "bad_words_token_ids"})
_SAME_NAME = tuple(item.name for item in fields(SamplingParams) if item.name not in _SPECIAL)


def sampling_params(
    body: SamplingBody,
    state: ServerState,
    *,
    prompt_tokens: int,
    max_tokens: int | None,
    logprobs: int | None,
) -> SamplingParams:
    """What the client asked for, on top of what the model recommends.

    Args:
        prompt_tokens: of the longest prompt of the request.
        max_tokens: None for as many as the context holds.
        logprobs: alternatives a position; None for no log-probabilities.

    Raises:
        InvalidParameter: a value is out of range.
        ContextTooLong: prompt and output together exceed the context.
    """
    room = state.max_model_len - prompt_tokens
    if max_tokens is not None and max_tokens > room:
        raise ContextTooLong(
            f"this model's context is {state.max_model_len} tokens, but the request needs "
            f"{prompt_tokens + max_tokens}: {prompt_tokens} for the prompt and {max_tokens} for "
            f"the output; ask for {room} or less",
            param="max_tokens",
        )
    _check_alternatives(state, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs)
    given: dict[str, Any] = dict(state.generation_defaults)
    for name in _SAME_NAME:
        value = getattr(body, name, None)
        if value is not None:
            given[name] = value
    return SamplingParams(
        **given,
        max_tokens=room if max_tokens is None else max_tokens,
        logprobs=logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}),
    )


def _check_alternatives(state: ServerState, **wanted: int | None) -> None:
    limit = state.config.max_logprobs
    for name, value in wanted.items():
        if value is not None and not 0 <= value <= limit:
            raise InvalidParameter(
                f"{name} asks for {value} alternatives: this server gives 0 to {limit}", param=name
            )


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    biases = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise InvalidParameter(
                f"logit_bias has the key {token!r}: use token ids", param="logit_bias"
            )
        biases[int(token)] = bias
    return biases
