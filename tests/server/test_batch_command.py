"""``octavo batch`` as users run it, with a tiny model in processes of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint

from octavo.cli.main import main

FLAGS = ["--num-blocks", "64", "--num-threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("batch") / "tiny"
    write_checkpoint(path, "llama")
    return str(path)


def write_requests(path: Path, count: int, **fields: Any) -> None:
    body = {"prompt": "the fox", "max_tokens": 3, "temperature": 0, "ignore_eos": True, **fields}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def outcomes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ended_by_ctrl_c_and_resumed(model: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(source, 400, max_tokens=60)
    command = [sys.executable, "-P", "-m", "octavo.cli", "batch", model, *FLAGS]
    command += ["-i", str(source), "-o", str(target), "--concurrency", "4"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not target.exists() or target.stat().st_size < 2000:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert "go on with --resume" in " ".join(said.split())
    found = outcomes(target)
    assert sorted(int(outcome["custom_id"]) for outcome in found) == list(range(400))
    ended = [outcome for outcome in found if outcome["error"] is not None]
    assert {outcome["error"]["code"] for outcome in ended} == {"batch_cancelled"}
    assert 0 < len(ended) < 400
    before = [outcome for outcome in found if outcome["error"] is None]

    # The same requests, shorter, so that what is made again can be told from what was made.
    write_requests(source, 400, max_tokens=1)
    resumed = subprocess.run(
        [*command[:-2], "--resume"], stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"{len(before)} had been served before" in " ".join(resumed.stderr.split())
    found = outcomes(target)
    assert found[: len(before)] == before
    assert sorted(int(outcome["custom_id"]) for outcome in found) == list(range(400))
    tokens = Counter(o["response"]["body"]["usage"]["completion_tokens"] for o in found)
    assert tokens == {60: len(before), 1: len(ended)}


def test_files_are_looked_at_before_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(source, 2)
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n")
    target.write_text("something\n")
    for files, flags, said in (
        ((missing, target), [], "cannot be read"),
        ((empty, target), [], "holds no requests"),
        ((source, source), ["--overwrite"], "is the input as well"),
        ((source, target), [], "is not empty: go on with it by --resume, or start anew"),
        ((source, target), ["--resume"], "is no outcome of a batch"),
        ((source, tmp_path / "no" / "where"), [], "cannot be written"),
        ((source, target), ["--overwrite", "--concurrency", "0"], "concurrency is 0"),
    ):
        names = ["-i", str(files[0]), "-o", str(files[1])]
        assert main(["batch", "/no/model", *names, *flags]) == 1
        assert said in capsys.readouterr().err
        assert target.read_text() == "something\n"
    assert main(["batch", "/no/model", "-i", str(source), "-o", str(target), "--overwrite"]) == 1
    assert "ModelLoadError" in capsys.readouterr().err
    assert target.read_text() == "something\n", "nothing is lost for nothing"


def test_a_failed_request_is_status_1(model: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(source, 1, model="mine")
    lines = source.read_text()
    source.write_text(lines + lines.replace("mine", "other").replace('"0"', '"1"'))
    arguments = ["-i", str(source), "-o", str(target), "--served-model-name", "mine"]
    assert main(["batch", model, *FLAGS, *arguments]) == 1
    found = {outcome["custom_id"]: outcome["response"] for outcome in outcomes(target)}
    assert found["0"]["body"]["model"] == "mine"
    assert (found["0"]["status_code"], found["1"]["status_code"]) == (200, 404)
