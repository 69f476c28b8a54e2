"""What a client may ask of sampling: one frozen dataclass, validated in one place.

Names, defaults and ranges follow the OpenAI API and its common extensions, so that one object
serves the offline API and the server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.core.errors import InvalidParameter
from octavo.core.types import Pooling, TokenId

MAX_SEED = 2**63 - 1
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 1024
MAX_N = 128
MAX_STRUCTURED_CHARS = 1 << 18
_KINDS = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class Structured:
    """A form that the output must have. See the class methods for how to make one.

    Raises:
        InvalidParameter: the kind is unknown, or the value no text or too long.
    """

    kind: Literal["json", "regex", "choice", "grammar"]
    """A JSON schema, a regular expression, one of several strings, or a grammar."""

    value: str
    """The schema (``{"type": "object"}`` for any object) or the choices as JSON text; the
    expression or grammar itself."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidParameter(
                f"structured has the kind {self.kind!r}: use {', '.join(_KINDS)}",
                param="structured",
            )
        if not isinstance(self.value, str):
            raise InvalidParameter(
                f"structured has {self.value!r:.60} as its {self.kind}: use text, or "
                f"Structured.{self.kind}(...)",
                param="structured",
            )
        if len(self.value) > MAX_STRUCTURED_CHARS:
            raise InvalidParameter(
                f"the {self.kind} for structured output has {len(self.value)} characters: use at "
                f"most {MAX_STRUCTURED_CHARS}",
                param="structured",
            )

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | str | type | None = None) -> Structured:
        """Text that is valid JSON by a schema: a mapping, JSON text, or a pydantic model's class;
        any object if there is none."""
        if schema is None:
            schema = {"type": "object"}
        elif isinstance(schema, type):
            make = getattr(schema, "model_json_schema", None)
            if make is None:
                raise InvalidParameter(
                    f"structured has the class {schema.__name__}, which is no pydantic model: use "
                    "one, or a JSON schema",
                    param="structured",
                )
            schema = make()
        return cls("json", schema if isinstance(schema, str) else _json_text(schema))

    @classmethod
    def regex(cls, pattern: str) -> Structured:
        """Text that a regular expression matches as a whole; no look-around, no references."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Structured:
        """One of these strings."""
        is_list = isinstance(choices, list | tuple)
        if not is_list or not choices or not all(isinstance(item, str) for item in choices):
            raise InvalidParameter(
                f"structured has the choices {choices!r}: use a list of strings, one at least",
                param="structured",
            )
        return cls("choice", _json_text(list(choices)))

    @classmethod
    def grammar(cls, text: str) -> Structured:
        """Text of a grammar, which is written as for Lark (``start: ...``) or in GBNF
        (``root ::= ...``)."""
        return cls("grammar", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to pick the next tokens of a request, and when to stop.

    Raises:
        InvalidParameter: a value is outside its range; the message names both.
    """

    n: int = 1
    """Completions to generate for the prompt (1 to 128)."""

    temperature: float = 1.0
    """0 takes the most likely token; higher values flatten the distribution (0 to 100)."""

    top_p: float = 1.0
    """Sample from the smallest set of tokens whose probabilities reach this sum, in (0, 1]."""

    top_k: int = 0
    """Sample from this many of the most likely tokens; 0 or -1 for all."""

    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one, in [0, 1]."""

    seed: int | None = None
    """Makes sampling repeatable, whatever else is in the batch; random if not given."""

    repetition_penalty: float = 1.0
    """Divides positive logits of tokens in prompt or output and multiplies negative ones, in
    [0.01, 10]."""

    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token already generated, in [-2, 2]."""

    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time it was generated, in [-2, 2]."""

    logit_bias: dict[TokenId, float] = field(default_factory=dict)
    """Added to the logits of single tokens, each in [-100, 100]."""

    allowed_token_ids: tuple[TokenId, ...] | None = None
    """If given, only these tokens may be generated."""

    structured: Structured | None = None
    """A form that the output must have: a JSON schema, a regular expression, one of several
    strings, or a grammar."""

    bad_words: tuple[str, ...] = ()
    """Strings that may not be generated (1024 at most)."""

    bad_words_token_ids: tuple[tuple[TokenId, ...], ...] = ()
    """Token sequences that may not be generated; the front end adds those of ``bad_words``."""

    stop: tuple[str, ...] = ()
    """Strings that end the output (16 at most)."""

    stop_token_ids: tuple[TokenId, ...] = ()
    """Tokens that end the output, besides the model's end-of-sequence tokens."""

    include_stop_str_in_output: bool = False
    """Keep the stop string at the end of the text."""

    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens."""

    min_tokens: int = 0
    """Tokens to generate before any stop condition may end the output."""

    max_tokens: int | None = 16
    """Tokens to generate at most; None for as many as the context holds, 0 for what can be said of
    the prompt alone."""

    logprobs: int | None = None
    """Log-probabilities to return for each generated token: its own and this many of the best."""

    prompt_logprobs: int | None = None
    """The same for each token of the prompt."""

    pooling: Pooling | None = None
    """Also return the prompt's embedding: the model's final hidden states, of all its tokens (mean)
    or of the last one."""

    speculative: bool = True
    """Guess ahead for this request, if the engine does so; the tokens are the same either way."""

    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    shown_special_token_ids: tuple[TokenId, ...] = ()
    """Special tokens that stay in the text all the same: marks that whoever reads it needs."""

    spaces_between_special_tokens: bool = True
    """Put spaces between special tokens in the text when they are kept."""

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            object.__setattr__(self, name, _strings(name, value))
        for name in ("stop_token_ids", "allowed_token_ids", "shown_special_token_ids"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _token_ids(name, value))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.structured is not None and not isinstance(self.structured, Structured):
            raise InvalidParameter(
                f"structured is a {type(self.structured).__name__}: use Structured.json, .regex, "
                ".choice or .grammar",
                param="structured",
            )
        self._check_ranges()
        self._check_combinations()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def _check_ranges(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, 0, 2**31 - 1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        # A penalty near 0 would carry logits beyond what float32 holds.
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0, 2**31 - 1)
        if self.pooling not in (None, "mean", "last"):
            raise InvalidParameter(
                f"pooling is {self.pooling!r}: use mean or last", param="pooling"
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, 2**31 - 1)
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias token id", token, 0, 2**31 - 1, param="logit_bias")
            _check_float(f"logit_bias[{token}]", bias, -100.0, 100.0, param="logit_bias")

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens is {self.min_tokens}, more than max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParameter(
                f"stop has {len(self.stop)} strings: use at most {MAX_STOP_STRINGS}", param="stop"
            )
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidParameter(
                f"bad_words has {len(self.bad_words)} strings: use at most {MAX_BAD_WORDS}",
                param="bad_words",
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter(
                "allowed_token_ids is empty: no token could be generated", param="allowed_token_ids"
            )
        if any(not sequence for sequence in self.bad_words_token_ids):
            raise InvalidParameter(
                "bad_words_token_ids has an empty sequence", param="bad_words_token_ids"
            )


def validate_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Refuses token ids that the model does not have.

    Raises:
        InvalidParameter: names the field, the id and the size of the vocabulary.
    """
    named = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids,
        "bad_words_token_ids": [token for words in params.bad_words_token_ids for token in words],
    }
    for name, token_ids in named.items():
        for token in token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidParameter(
                    f"{name} has token id {token}: this model's are 0 to {vocab_size - 1}",
                    param=name,
                )


def _check_int(name: str, value: object, low: int, high: int, *, param: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(f"{name} is {value!r}: use a whole number", param=param or name)
    if not low <= value <= high:
        raise InvalidParameter(f"{name} is {value}: use {low} to {high}", param=param or name)


def _check_float(
    name: str,
    value: object,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    param: str | None = None,
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidParameter(f"{name} is {value!r}: use a number", param=param or name)
    if not low <= value <= high or (open_low and value == low):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        raise InvalidParameter(
            f"{name} is {value:g}: use a value in {interval}", param=param or name
        )


def _json_text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter(
            f"structured has a value that JSON cannot hold: {error}", param="structured"
        ) from None


def _strings(name: str, value: object) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, tuple | list) or not all(isinstance(item, str) for item in items):
        raise InvalidParameter(
            f"{name} is {value!r}: use a string or a list of strings", param=name
        )
    if not all(items):
        raise InvalidParameter(f"{name} has an empty string", param=name)
    return tuple(items)


def _token_ids(name: str, value: object) -> tuple[TokenId, ...]:
    if not isinstance(value, tuple | list | set | frozenset):
        raise InvalidParameter(f"{name} is {value!r}: use a list of token ids", param=name)
    for item in value:
        _check_int(f"{name} item", item, 0, 2**31 - 1, param=name)
    return tuple(value)
