from __future__ import annotations

import pytest
from llguidance import LLTokenizer
from support.vocabularies import byte_level_metadata

from octavo.grammar.vocabulary import make_vocabulary
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer

EOS = 2


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    return make_vocabulary(tokenizer, vocab_size=500, eos_token_ids=[EOS])
