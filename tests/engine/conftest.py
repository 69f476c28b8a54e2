"""A tiny random model on disk, and engines made from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint

from octavo import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "llama"
    write_checkpoint(path, "llama")
    return path


@pytest.fixture
def make_llm(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LLM]:
    """Makes engines that check every block after every step."""
    monkeypatch.setenv("OCTAVO_CHECK_INVARIANTS", "1")

    def make(**options: Any) -> LLM:
        defaults = {"num_blocks": 512, "num_threads": 1, "max_num_seqs": 64}
        return LLM(str(tiny_model), **{**defaults, **options})

    return make
