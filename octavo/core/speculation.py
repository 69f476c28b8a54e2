"""What ``speculative_config`` may say: parsed once, refused by name."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from octavo.core.errors import ConfigError

Method = Literal["ngram", "suffix", "draft_model", "self"]
MAX_SPECULATIVE_TOKENS = 64
_RANGES: dict[str, tuple[float, float]] = {
    "num_speculative_tokens": (1, MAX_SPECULATIVE_TOKENS),
    "prompt_lookup_max": (1, 32),
    "prompt_lookup_min": (1, 32),
    "suffix_decoding_max_tree_depth": (3, 1024),
    "suffix_decoding_max_cached_requests": (0, 100_000),
    "suffix_decoding_max_spec_factor": (0.0, 64.0),
    "suffix_decoding_min_token_prob": (0.0, 1.0),
}

_OF_ONE_METHOD: dict[str, Method] = {
    "prompt_lookup_": "ngram",
    "suffix_decoding_": "suffix",
    "model": "draft_model",
}
"""Beginnings of names that only one method knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How drafts are made.

    Raises:
        ConfigError: a value is outside its range; the message names both.
    """

    method: Method = "ngram"
    """ngram: what followed the same tokens earlier in prompt or output (prompt lookup); suffix: the
    same, and in earlier answers of the tenant too; draft_model: what a smaller model generates;
    self: what the model itself generates with its weights in 4 bits."""
    model: str | None = None
    """The smaller model, for draft_model: as the model itself is named."""
    num_speculative_tokens: int = 8
    """Tokens of a draft at most (1 to 64)."""
    prompt_lookup_max: int = 4
    """Longest run of last tokens to look for."""
    prompt_lookup_min: int = 2
    """Shortest run of last tokens to look for."""
    suffix_decoding_max_tree_depth: int = 24
    """suffix: tokens of a match beyond which it counts as no better."""
    suffix_decoding_max_cached_requests: int = 1000
    """suffix: finished answers of each tenant that are remembered; 0 for none."""
    suffix_decoding_max_spec_factor: float = 1.0
    """suffix: tokens to guess for each token of the match."""
    suffix_decoding_min_token_prob: float = 0.1
    """suffix: how likely all tokens of a draft together must be, by how often they followed."""
    adaptive: bool = True
    """Draft less, or nothing, where that gives more tokens a second; else always all."""

    def __post_init__(self) -> None:
        methods = get_args(Method)
        if self.method not in methods:
            raise _error(f"has the method {self.method!r}: use {', '.join(methods)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            is_number = type(value) is int or (type(value) is float and isinstance(high, float))
            if not is_number or not low <= value <= high:
                raise _error(f"has {name} {value!r}: use {low} to {high}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise _error(
                f"has prompt_lookup_min {self.prompt_lookup_min}, more than prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        if type(self.adaptive) is not bool:
            raise _error(f"has adaptive {self.adaptive!r}: use true or false")
        self._check_model()

    def _check_model(self) -> None:
        if self.model is not None and not (isinstance(self.model, str) and self.model):
            raise _error(f"has model {self.model!r}: use a name, a directory or a file")
        if self.method == "draft_model" and self.model is None:
            raise _error('has the method "draft_model": name the smaller model as "model"')

    @property
    def by_model(self) -> bool:
        """Whether the executor makes the guesses, with a model."""
        return self.method in ("draft_model", "self")


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
    parsed = Speculation(**given)
    for name in given:
        for prefix, method in _OF_ONE_METHOD.items():
            if name.startswith(prefix) and method != parsed.method:
                raise _error(
                    f"has {name}, which the method {parsed.method!r} does not use: leave it "
                    f"out, or use the method {method!r}"
                )
    return parsed


def _error(what: str) -> ConfigError:
    return ConfigError(f"speculative_config {what}")
