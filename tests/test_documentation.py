"""What the code promises about its own documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.core import config, errors
from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.observe_config import ObservabilityConfig
from octavo.core.options import part_fields
from octavo.core.params import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
PARTS = [
    config.ModelConfig,
    config.CacheConfig,
    config.SchedulerConfig,
    config.DeviceConfig,
    config.ServerConfig,
    SecurityConfig,
    LimitsConfig,
    ObservabilityConfig,
    SamplingParams,
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_field_has_a_sentence(part: type) -> None:
    for item, _, doc in part_fields(part):
        assert doc.endswith("."), f"{part.__name__}.{item.name}"


@pytest.mark.parametrize("page", ["settings", "metrics"])
def test_generated_pages_are_up_to_date(page: str) -> None:
    command = [sys.executable, str(ROOT / f"scripts/{page}_reference.py"), "--check"]
    subprocess.run(command, check=True)


def test_error_tree_is_drawn_as_it_is() -> None:
    drawing = errors.__doc__ or ""
    depth_of = {}
    for line in drawing.splitlines():
        name = line.strip(" │├└─").split(" ")[0]
        if isinstance(getattr(errors, name, None), type):
            depth_of[name] = (len(line) - len(line.lstrip(" │├└─"))) // 4
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.EngineError):
            assert len(value.__mro__) - len(errors.EngineError.__mro__) == depth_of[name] - 1, name


def test_every_public_name_resolves() -> None:
    import octavo

    assert set(octavo.__all__) == {
        "LLM",
        "AsyncLLM",
        "SamplingParams",
        "Structured",
        "__version__",
    }
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        octavo.nothing  # noqa: B018


def test_back_ends_are_listed_in_the_import_contract() -> None:
    contract = (ROOT / ".importlinter").read_text()
    others = {"__init__", "base", "select", "one_token", "chunks"}
    for path in (ROOT / "octavo/attention").glob("*.py"):
        assert path.stem in others or f"octavo.attention.{path.stem}" in contract, path.name
