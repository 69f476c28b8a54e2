"""The README's programs that need no server, run as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
PROGRAMS = [
    program
    for program in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if "from octavo import" in program
]

pytestmark = pytest.mark.real_model


def test_both_ways_without_a_server_are_shown() -> None:
    assert sum("AsyncLLM" in program for program in PROGRAMS) == 1
    assert sum("LLM(" in program for program in PROGRAMS) == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_of_the_readme_run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 10
