"""What an import must not load: start-up time and optional dependencies depend on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "triton")
SERVER_ONLY = ("fastapi", "uvicorn", "pydantic", "zmq", "msgspec", "prometheus_client")


def loaded_after(statement: str, names: tuple[str, ...]) -> set[str]:
    code = f"import sys\n{statement}\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["octavo", "octavo.cli.main", "octavo.cli.serve", "octavo.assemble", "octavo.server.app"],
)
def test_the_control_plane_loads_no_tensor_library(module: str) -> None:
    assert loaded_after(f"import {module}", HEAVY) == set()


def test_reading_a_model_for_the_front_end_loads_no_tensor_library() -> None:
    statement = (
        "from octavo.assemble import read_front\n"
        "from octavo.core.config import ModelConfig\n"
        "read_front(ModelConfig())"
    )
    assert loaded_after(statement, HEAVY) == set()


@pytest.mark.parametrize(
    "module",
    [
        "octavo.engine.core",
        "octavo.scheduler.scheduler",
        "octavo.kv.manager",
        "octavo.runner.model_runner",
        "octavo.models.native",
        "octavo.loader.weights",
        "octavo.sampling.pipeline",
    ],
)
def test_the_engine_core_needs_no_server_dependency(module: str) -> None:
    assert loaded_after(f"import {module}", SERVER_ONLY) == set()
