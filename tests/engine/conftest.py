"""A tiny random model on disk, and engines made from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint

from octavo import LLM
from octavo.kernels.native import instruction_sets


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "llama"
    write_checkpoint(path, "llama")
    return path


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> str:
    """Both ways to compute a step."""
    if request.param == "native" and not instruction_sets():
        pytest.skip("octavo-native is not installed: no compiler when `make test` installed")
    return request.param


@pytest.fixture
def make_llm(tiny_model: Path, kernels: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LLM]:
    """Makes engines that check every block after every step."""
    monkeypatch.setenv("OCTAVO_CHECK_INVARIANTS", "1")

    def make(**options: Any) -> LLM:
        defaults = {"num_blocks": 512, "num_threads": 1, "max_num_seqs": 64, "kernels": kernels}
        return LLM(str(tiny_model), **{**defaults, **options})

    return make
