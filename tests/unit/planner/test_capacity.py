"""The plan of a 13-billion-parameter Llama on a 40 GB A100, worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


def test_llama_13b_on_a_40_gb_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["plan", str(tmp_path), "--gpu", "a100-40gb", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    # 40 layers of 4 x 5120^2 + 3 x 5120 x 13824 + 2 x 5120; two of 32000 x 5120; 5120.
    assert record["weight_bytes"] == 2 * 13_015_864_320
    # K and V, 40 layers, 5120 values of 2 bytes.
    assert record["kv_bytes_per_token"] == 2 * 40 * 5120 * 2 == 819_200
    left = int(40 * 2**30 * 0.9) - record["weight_bytes"] - record["activation_bytes"]
    blocks = left // (819_200 * 16)
    assert record["num_blocks"] == blocks
    assert record["contiguous_requests"] == blocks // 128
    assert record["paged_requests"] == blocks // 32
    moved = 2 * 13_015_864_320 + 500 * 819_200
    assert record["decode_tokens_per_s"]["1"] == round(1.555e12 / moved)


def test_what_it_does_not_know_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = ["plan", str(tmp_path), "--gpu", "a100-40gb"]
    assert main([*words, "--quantization", "int8"]) == 1
    assert "neither quantization nor speculation" in capsys.readouterr().err
    assert main([*words, "--request-tokens", "0"]) == 1
    assert main([*words, "--dtype", "float32"]) == 1  # 52 GB of weights
    assert "requests of 2,048" in capsys.readouterr().err
    assert main(words) == 0
    assert "paged requests" in capsys.readouterr().out
