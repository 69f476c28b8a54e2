"""One checkpoint of each family, written once for all tests of the loader."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.checkpoints import FAMILIES, GGUF_FAMILIES, write_checkpoint, write_gguf


@pytest.fixture(scope="session")
def hf_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hf")
    return {family: write_checkpoint(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def gguf_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("gguf")
    for family in GGUF_FAMILIES:
        write_gguf(root / f"{family}.gguf", family)
    return {family: root / f"{family}.gguf" for family in GGUF_FAMILIES}


@pytest.fixture
def llama_copy(hf_checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A directory that the test may change."""
    return Path(shutil.copytree(hf_checkpoints["llama"], tmp_path / "llama"))
