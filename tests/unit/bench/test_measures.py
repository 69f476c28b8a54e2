"""The measurements measure what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from support.checkpoints import write_checkpoint

from octavo.bench import perplexity, step
from octavo.cli.main import main
from octavo.core.errors import InvalidParameter
from octavo.llm import LLM

TEXT = "the quick brown fox jumps over the lazy dog and then the other one, page after page. " * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("measures") / "m", "smollm2")


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return LLM(str(checkpoint), dtype="float32", num_blocks=256, max_model_len=256)


def test_perplexity_is_that_of_transformers(checkpoint: Path, llm: LLM) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = llm.tokenizer.encode(TEXT)
    losses: list[float] = []
    for at in range(0, len(ids), 50):
        part = torch.tensor([ids[at : at + 50]])
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(part).logits[0, :-1], -1)
        losses += (-logprobs.gather(1, part[0, 1:, None])[:, 0]).tolist()
    result = perplexity.measure(llm, TEXT, window=50)
    assert result.num_tokens == len(losses)
    assert result.num_windows == -(-len(ids) // 50)
    assert result.value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-3)
    assert 0 < result.standard_error < result.value


def test_texts_and_windows_that_cannot_be_measured(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="2 or more are needed"):
        perplexity.measure(llm, "")
    for window in (1, 257):
        with pytest.raises(InvalidParameter, match="use 2 to 256"):
            perplexity.measure(llm, TEXT, window=window)


def test_command_prints_what_was_measured(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    words = ["eval", "perplexity", str(checkpoint), "--file", str(file), "--window", "40"]
    assert main([*words, "--json", "--num-blocks", "64", "--max-tokens", "100"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["windows"] == 3
    assert record["tokens"] == 97
    assert record["perplexity"] > 1
    assert main(["eval", "perplexity", str(checkpoint), "--file", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_step_times_add_up(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "step", str(checkpoint), "--rows", "1", "30", "--context", "60"]
    assert main([*words, "--steps", "5", "--json", "--num-blocks", "256"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["rows"] for line in lines] == [1, 30]
    for line in lines:
        assert line["forward_ms"] + line["sample_ms"] <= line["total_ms"] + 0.05
        assert line["moved_mb"] > 0
    assert lines[1]["moved_mb"] > lines[0]["moved_mb"]


def test_bandwidth_is_one() -> None:
    assert step.read_bandwidth(1) > 1e8
