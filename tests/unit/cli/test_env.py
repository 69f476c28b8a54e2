from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psutil
import pytest

import octavo
from octavo.cli import env as command
from octavo.cli.main import main
from octavo.core import env
from octavo.kernels.native import instruction_sets

PACKAGE = Path(octavo.__file__).parent


@pytest.fixture
def facts(capsys, monkeypatch):
    def collect(**variables: str):
        for name in env.VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["env", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return collect


def test_it_says_what_the_machine_has(facts):
    found = facts()
    assert found["software"]["octavo"] == octavo.__version__
    assert found["software"]["torch"].startswith("2.")
    assert found["processor"]["threads"] == os.cpu_count()
    assert found["processor"]["usable threads"] == len(os.sched_getaffinity(0))
    total = psutil.virtual_memory().total
    assert found["memory"]["total"] == total
    assert 0 < found["memory"]["used by default"] <= total // 2 + 1
    assert found["extras"]["otel"]["opentelemetry-sdk"]
    assert found["environment"] == {}


def test_which_kernels_are_chosen_and_why(facts):
    sets = instruction_sets()
    kernels = facts()["native kernels"]
    assert (kernels["found"], kernels["forced"]) == (sets, None)
    assert kernels["chosen"] == (sets[0] if sets else None)
    if sets:
        kernels = facts(OCTAVO_CPU_ISA="portable")["native kernels"]
        assert (kernels["forced"], kernels["chosen"]) == ("portable", "portable")
    kernels = facts(OCTAVO_CPU_ISA="z80")["native kernels"]
    assert kernels["chosen"] is None and "OCTAVO_CPU_ISA='z80'" in kernels["problem"]


def test_without_kernels_it_says_what_to_do(facts, monkeypatch):
    monkeypatch.setattr("octavo.kernels.native.instruction_sets", list)
    kernels = facts()["native kernels"]
    assert kernels["chosen"] is None and "pip install ./native" in kernels["problem"]


def test_secrets_are_not_shown(facts):
    given = {name: f"secret-{name}" for name, known in env.VARIABLES.items() if known.is_secret}
    found = facts(**given, HF_HOME="/somewhere")["environment"]
    assert "secret-" not in json.dumps(found)
    assert found == {**dict.fromkeys(given, "(set)"), "HF_HOME": "/somewhere"}


def test_every_variable_that_is_read_is_in_the_table():
    read = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bOCTAVO_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    assert read == {name for name in env.VARIABLES if name.startswith("OCTAVO_")}


def test_for_people(capsys):
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(command.collect())
    assert any(re.fullmatch(r"  total +[0-9.]+ GiB", line) for line in lines)


def test_limits_of_processor_time(tmp_path):
    assert command.cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert command.cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert command.cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert command.cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert command.cpu_quota(tmp_path) is None
