from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

from octavo.cli.main import main


def test_a_file_of_prompts_becomes_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "tiny", "llama")
    prompts, output = tmp_path / "prompts.txt", tmp_path / "trace.json"
    prompts.write_text("hello\n\nhello world\n", encoding="utf-8")
    limits = ["--num-blocks", "64", "--num-threads", "1", "--max-tokens", "3", "--ignore-eos"]
    files = ["--prompts", str(prompts), "--output", str(output)]
    assert main(["trace", str(tmp_path / "tiny"), *limits, *files]) == 0
    events = json.loads(output.read_text(encoding="utf-8"))["traceEvents"]
    sampled = [e["args"]["sampled"] for e in events if "sampled" in e.get("args", {})]
    assert sum(sampled) == 2 * 3
    assert "2 prompts" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "\n \n"], ids=["missing", "empty"])
def test_prompts_that_are_not_there(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    if text is not None:
        prompts.write_text(text, encoding="utf-8")
    assert main(["trace", "--prompts", str(prompts), "--output", str(tmp_path / "t")]) == 1
    assert str(prompts) in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
