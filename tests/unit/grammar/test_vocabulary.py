from __future__ import annotations

import re

import numpy as np
import pytest
from support.vocabularies import (
    byte_level_metadata,
    sentencepiece_metadata,
    word_backend,
)

from octavo.core.errors import UnsupportedParameter
from octavo.core.params import Structured
from octavo.grammar.store import compiled
from octavo.grammar.vocabulary import make_vocabulary
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer


def allowed(structured: Structured, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    vocabulary = make_vocabulary(tokenizer, vocab_size=vocab_size, eos_token_ids=[1, 2])
    mask = np.frombuffer(compiled(structured, vocabulary).compute_bitmask(), np.uint8)
    return np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()


@pytest.mark.parametrize("metadata", [byte_level_metadata, sentencepiece_metadata])
def test_tokens_are_those_whose_bytes_fit(metadata) -> None:
    tokenizer = tokenizer_from_gguf(metadata())
    begins = re.compile(rb"t|th|the[a-z]*|\xe4|\xe4\xb8|\xe4\xb8\x96")
    special = tokenizer.all_special_ids
    expected = [
        i
        for i in range(tokenizer.vocab_size)
        if i not in special and begins.fullmatch(tokenizer.token_bytes(i))
    ]
    found = allowed(Structured.regex("the[a-z]*|世"), tokenizer, tokenizer.vocab_size + 77)
    assert {tokenizer.token_bytes(i) for i in found} >= {b"t", b"\xe4"}
    assert found == expected


def test_ids_beyond_the_tokenizer_are_never_allowed_and_every_end_is() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    size = tokenizer.vocab_size
    found = allowed(Structured.regex(r"[\s\S]*"), tokenizer, size + 77)
    assert max(found) < size and {1, 2} <= set(found)
    assert allowed(Structured.regex("(ab)?"), tokenizer, 1)[:2] == [1, 2], "fewer than it has"


def test_a_tokenizer_of_an_unknown_kind_is_told() -> None:
    with pytest.raises(UnsupportedParameter, match="not possible with this model's tokenizer"):
        make_vocabulary(Tokenizer(word_backend()), vocab_size=5, eos_token_ids=[4])
