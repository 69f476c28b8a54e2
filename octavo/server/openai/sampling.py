"""From request fields to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.server.openai.schemas import SamplingBody
from octavo.server.openai.structured import wanted_form
from octavo.server.parsing.plan import AnswerPlan
from octavo.server.state import ServerState
from octavo.tokenizer.bad_words import with_bad_words

MAX_COMPLETIONS = 1024
"""Of one HTTP request, over all its prompts."""

_SPECIAL = frozenset(
    {
        "logprobs",
        "prompt_logprobs",
        "max_tokens",
        "logit_bias",
        "bad_words_token_ids",
        "structured",
        "shown_special_token_ids",
    }
)
_SAME_NAME = tuple(item.name for item in fields(SamplingParams) if item.name not in _SPECIAL)
_MAX_ID_DIGITS = 10


def sampling_params(
    body: SamplingBody,
    state: ServerState,
    prompts: Sequence[Sequence[TokenId]],
    *,
    max_tokens: tuple[str, int | None],
    logprobs: tuple[str, int | None],
    prompt_logprobs: int | None,
    least_tokens: int = 1,
    plan: AnswerPlan | None = None,
) -> SamplingParams:
    """What the client asked for, on top of what the model recommends.

    Args:
        max_tokens: the parameter that says it, and how many; None for what the context holds.
        logprobs: the parameter that says it, and the alternatives a position; None for none.
        least_tokens: what max_tokens must be at least.
        plan: how the answers are read, if they are more than text.

    Raises:
        InvalidParameter: a value is out of range.
        ContextTooLong: prompt and output together exceed the context.
    """
    longest = max(map(len, prompts))
    room = state.max_model_len - longest
    _check_room(state, longest, *max_tokens, least_tokens)
    for name, value in (logprobs, ("prompt_logprobs", prompt_logprobs)):
        _check_alternatives(state, name, value)
    given: dict[str, Any] = {
        name: value for name, value in state.generation_defaults.items() if name in _SAME_NAME
    }
    for name in _SAME_NAME:
        value = getattr(body, name, None)
        if value is not None:
            given[name] = value
    params = SamplingParams(
        **given,
        max_tokens=room if max_tokens[1] is None else max_tokens[1],
        logprobs=logprobs[1],
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}),
        structured=wanted_form(body) if plan is None else plan.structured,
        shown_special_token_ids=() if plan is None else plan.shown_token_ids,
    )
    if params.n * len(prompts) > MAX_COMPLETIONS:
        name = "best_of" if getattr(body, "best_of", None) else "n"
        raise InvalidParameter(
            f"{len(prompts)} prompts with {name} = {params.n} ask for {params.n * len(prompts)} "
            f"completions: ask for {MAX_COMPLETIONS} or less at a time",
            param=name,
        )
    # Once for all prompts, and not in the event loop if the request is large.
    return replace(with_bad_words(params, state.engine.tokenizer), bad_words=())


def _check_room(
    state: ServerState, prompt_tokens: int, name: str, wanted: int | None, least: int
) -> None:
    if wanted is None:
        return
    if wanted < least:
        raise InvalidParameter(f"{name} is {wanted}: use {least} or more", param=name)
    room = state.max_model_len - prompt_tokens
    if wanted > room:
        raise ContextTooLong(
            f"this model's context is {state.max_model_len} tokens, but the request needs "
            f"{prompt_tokens + wanted}: {prompt_tokens} for the prompt and {wanted} for the "
            f"output; with this prompt, use a {name} of {room} or less",
            param=name,
        )


def _check_alternatives(state: ServerState, name: str, value: int | None) -> None:
    limit = state.config.max_logprobs
    if value is not None and not 0 <= value <= limit:
        raise InvalidParameter(
            f"{name} asks for {value} alternatives: this server gives 0 to {limit}", param=name
        )


def _logit_bias(given: dict[str, float]) -> dict[TokenId, float]:
    biases = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _MAX_ID_DIGITS):
            raise InvalidParameter(
                f"logit_bias has the key {token!r}: use token ids", param="logit_bias"
            )
        biases[int(token)] = bias
    return biases
