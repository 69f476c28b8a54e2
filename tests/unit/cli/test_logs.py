from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from octavo.core import env
from octavo.core.errors import ConfigError

CODE = """
import logging
from octavo.cli.logs import set_up_logging
print(set_up_logging({given!r}))
log = logging.getLogger("some.where")
log.debug("not shown")
log.info("two\\nlines and %d", 3)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
import os
print(os.environ.get("OCTAVO_LOG_FORMAT"))
"""


def run(given: str | None, **environ: str) -> tuple[list[str], list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(given=given)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr.splitlines()


@pytest.mark.parametrize("given", ["json", None])
def test_json_is_one_object_a_line(given: str | None) -> None:
    (form, inherited), lines = run(given, OCTAVO_LOG_FORMAT="json" if given is None else "text")
    assert form == inherited == "json", "processes that are started later get it too"
    first, second = map(json.loads, lines)
    assert first["message"] == "two\nlines and 3"
    assert (first["level"], first["logger"]) == ("INFO", "some.where")
    assert first["time"].endswith("Z") and first["pid"] > 0
    assert "exception" not in first
    assert "ZeroDivisionError" in second["exception"] and second["level"] == "ERROR"


def test_text_is_the_default() -> None:
    (form, inherited), lines = run(None)
    assert (form, inherited) == ("text", "None")
    assert lines[0].endswith("INFO some.where: two") and lines[-1].startswith("ZeroDivisionError")


def test_a_format_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="OCTAVO_LOG_FORMAT='xml': use text or json"):
        env.log_format()
