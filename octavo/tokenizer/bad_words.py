"""Forbidden strings as forbidden token sequences."""

from __future__ import annotations

from dataclasses import replace

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.types import TokenId
from octavo.tokenizer.tokenizer import Tokenizer


def with_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """``params`` with the tokens of its ``bad_words`` added to ``bad_words_token_ids``.

    Each string is encoded as it begins a text and as it follows a space; other ways to cut it
    into tokens stay possible, as everywhere where this parameter exists.

    Raises:
        InvalidParameter: a string has no tokens.
    """
    if not params.bad_words:
        return params
    sequences = dict.fromkeys(params.bad_words_token_ids)
    for word in params.bad_words:
        sequences.update(dict.fromkeys(_sequences(word, tokenizer)))
    return replace(params, bad_words_token_ids=tuple(sequences))


def _sequences(word: str, tokenizer: Tokenizer) -> list[tuple[TokenId, ...]]:
    bare = word.lstrip(" ") or word
    found = []
    for text in (bare, f" {bare}"):
        try:
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        except InvalidParameter as error:
            raise InvalidParameter(f"bad_words: {error}", param="bad_words") from None
        if not ids:
            raise InvalidParameter(
                f"bad_words holds {word!r}, which this model's tokenizer has no tokens for",
                param="bad_words",
            )
        found.append(ids)
    return found
