"""``benchmarks/soak.py``, for seconds instead of minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
SERVE = ("--num-blocks", "600", "--num-threads", "1", "--max-num-seqs", "24")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("soak") / "tiny"
    write_checkpoint(path, "llama")
    return str(path)


@pytest.mark.parametrize("kills", [0, 1])
def test_a_short_soak(model: str, kills: int) -> None:
    command = [sys.executable, str(SOAK), "--model", model, "--connections", "60"]
    command += ["--seconds", "8", "--patience", "30", "--kills", str(kills), "--", *SERVE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers["faults"] == []
    assert numbers["most_open"] == 60
    assert numbers["outcomes"]["done"] > 60 and numbers["outcomes"]["vanished"] > 10
    assert ("engine_dead" in numbers["outcomes"]) == bool(kills)
    assert "Traceback" not in done.stderr
