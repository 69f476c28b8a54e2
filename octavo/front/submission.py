"""From what a client asks to the message that the engine gets: the last check before the link.

Whatever would make the engine stumble is refused here, one request at a time, so that nothing that
a client sends can end a step that others take part in.
"""

from __future__ import annotations

import operator
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams, validate_against_vocab
from octavo.core.types import RequestId, TokenId
from octavo.front.outputs import RequestSummary
from octavo.tokenizer.bad_words import with_bad_words
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.messages import Submit

_SEED_BITS = 63
_FORK_ID = re.compile(r"(?P<first>.*)#[1-9][0-9]*", re.DOTALL)
_MAX_PRIORITY = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What belongs to a request besides its prompt and its sampling parameters."""

    request_id: RequestId
    priority: int
    cache_salt: str
    eos_token_ids: frozenset[TokenId]
    on_tokens: Callable[[int], None] | None = None
    """Told how many tokens have been generated since the last time."""
    on_end: Callable[[RequestSummary], None] | None = None
    """Told, in the end, what became of the request."""
    deadline_s: float | None = None
    """When the request must be done, by the front end's clock, if there is such a time."""


def make_submit(
    prompt_token_ids: Sequence[TokenId],
    params: SamplingParams,
    options: Options,
    *,
    tokenizer: Tokenizer,
    vocab_size: int,
) -> Submit:
    """A checked request, with a seed drawn if it has none and ``bad_words`` as token ids.

    Raises:
        InvalidParameter: names the field and the value at fault.
    """
    validate_against_vocab(params, vocab_size)
    _check_text("request_id", (options.request_id,))
    fork = _FORK_ID.fullmatch(options.request_id)
    if fork is not None:
        raise InvalidParameter(
            f"request id {options.request_id!r} may name a further completion of request "
            f"{fork['first']!r}: choose one that does not end in # and a number",
            param="request_id",
        )
    _check_text("cache_salt", (options.cache_salt,))
    _check_text("stop", params.stop)
    _check_text("bad_words", params.bad_words)
    if not -_MAX_PRIORITY - 1 <= options.priority <= _MAX_PRIORITY:
        raise InvalidParameter(
            f"priority is {options.priority}: use {-_MAX_PRIORITY - 1} to {_MAX_PRIORITY}",
            param="priority",
        )
    return Submit(
        request_id=options.request_id,
        prompt_token_ids=_checked_prompt(prompt_token_ids, vocab_size),
        params=with_bad_words(params, tokenizer),
        seed=secrets.randbits(_SEED_BITS) if params.seed is None else params.seed,
        eos_token_ids=options.eos_token_ids,
        priority=options.priority,
        cache_salt=options.cache_salt,
    )


def _checked_prompt(token_ids: Sequence[TokenId], vocab_size: int) -> tuple[TokenId, ...]:
    try:
        prompt = tuple(map(operator.index, token_ids))
    except TypeError as error:
        raise InvalidParameter(
            f"the prompt is no list of token ids: {error}", param="prompt"
        ) from None
    # An empty prompt is refused by the scheduler, together with those that are too long.
    for token in (min(prompt), max(prompt)) if prompt else ():
        if not 0 <= token < vocab_size:
            raise InvalidParameter(
                f"the prompt has token id {token}: this model's are 0 to {vocab_size - 1}",
                param="prompt",
            )
    return prompt


def _check_text(name: str, texts: Iterable[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter(
                f"{name} is no valid Unicode: the character {text[error.start]!a} at position "
                f"{error.start} is half of a pair",
                param=name,
            ) from None
