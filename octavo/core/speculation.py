"""What ``speculative_config`` may say: parsed once, refused by name."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from octavo.core.errors import ConfigError

Method = Literal["ngram"]
MAX_SPECULATIVE_TOKENS = 64
_MAX_NGRAM = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How drafts are made.

    Raises:
        ConfigError: a value is outside its range; the message names both.
    """

    method: Method = "ngram"
    """ngram: what followed the same tokens earlier in prompt or output (prompt lookup)."""
    num_speculative_tokens: int = 8
    """Tokens of a draft at most (1 to 64)."""
    prompt_lookup_max: int = 4
    """Longest run of last tokens to look for."""
    prompt_lookup_min: int = 2
    """Shortest run of last tokens to look for."""
    adaptive: bool = True
    """Draft less, or nothing, where that gives more tokens a second; else always all."""

    def __post_init__(self) -> None:
        methods = get_args(Method)
        if self.method not in methods:
            raise _error(f"has the method {self.method!r}: use {', '.join(methods)}")
        for name, low, high in (
            ("num_speculative_tokens", 1, MAX_SPECULATIVE_TOKENS),
            ("prompt_lookup_max", 1, _MAX_NGRAM),
            ("prompt_lookup_min", 1, _MAX_NGRAM),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise _error(f"has {name} {value!r}: use {low} to {high}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise _error(
                f"has prompt_lookup_min {self.prompt_lookup_min}, more than prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        if type(self.adaptive) is not bool:
            raise _error(f"has adaptive {self.adaptive!r}: use true or false")


def parse_speculation(text: str) -> Speculation:
    """Reads the JSON object that users write.

    Raises:
        ConfigError: it is no JSON object, or a name or a value in it is wrong.
    """
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise _error(f"is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise _error(f'is {text[:60]}: use an object, such as {{"method": "ngram"}}')
    known = {item.name for item in fields(Speculation)}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"use {', '.join(sorted(known))}"
            raise _error(f"has {name!r}, which is unknown: {hint}")
    if "method" not in given:
        raise _error(f"names no method: use {', '.join(get_args(Method))}")
    return Speculation(**given)


def _error(what: str) -> ConfigError:
    return ConfigError(f"speculative_config {what}")
