from __future__ import annotations

import pytest
from support.vocabularies import byte_level_metadata

from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())
