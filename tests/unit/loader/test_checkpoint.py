from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import BOS, CHAT_TEMPLATE, EOS, FAMILIES, GGUF_FAMILIES

from octavo.core.config import ModelConfig
from octavo.core.errors import ModelLoadError
from octavo.loader.checkpoint import read_checkpoint
from octavo.loader.source import ModelSource, resolve_source


def read(path: Path, load_format: Any = "auto"):
    source = resolve_source(ModelConfig(model=str(path), load_format=load_format))
    return read_checkpoint(source, load_format)


def rewrite(path: Path, **changes: Any) -> None:
    """Changes fields of a JSON file; ``...`` removes a field."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values = {k: v for k, v in {**values, **changes}.items() if v is not ...}
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("family", FAMILIES)
def test_directories(hf_checkpoints: dict[str, Path], family: str) -> None:
    checkpoint = read(hf_checkpoints[family])
    assert checkpoint.load_format == "safetensors"
    assert checkpoint.spec.num_layers == 2
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ({EOS}, BOS)
    assert checkpoint.generation_defaults == {}
    assert checkpoint.metadata is None


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_gguf_files(gguf_files: dict[str, Path], family: str) -> None:
    checkpoint = read(gguf_files[family])
    assert checkpoint.load_format == "gguf"
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ({EOS}, BOS)
    assert checkpoint.metadata is not None
    assert checkpoint.metadata["tokenizer.chat_template"] == CHAT_TEMPLATE


def test_hf_and_gguf_describe_the_same_model(
    hf_checkpoints: dict[str, Path], gguf_files: dict[str, Path]
) -> None:
    one, other = (read(files["smollm2"]).spec for files in (hf_checkpoints, gguf_files))
    assert one.rms_norm_eps == pytest.approx(other.rms_norm_eps)
    same = [f for f in one.__dataclass_fields__ if f != "rms_norm_eps"]
    assert {f: getattr(one, f) for f in same} == {f: getattr(other, f) for f in same}


def test_dummy_reads_the_config_only(llama_copy: Path) -> None:
    (llama_copy / "model.safetensors").unlink()
    (llama_copy / "generation_config.json").unlink()
    checkpoint = read(llama_copy, "dummy")
    assert checkpoint.load_format == "dummy"
    assert checkpoint.spec.vocab_size == 300


def test_end_of_sequence_ids_come_from_the_generation_config_first(llama_copy: Path) -> None:
    rewrite(llama_copy / "config.json", eos_token_id=7)
    rewrite(llama_copy / "generation_config.json", eos_token_id=[2, 9], bos_token_id=...)
    assert read(llama_copy).eos_token_ids == {2, 9}
    assert read(llama_copy).bos_token_id == BOS
    rewrite(llama_copy / "generation_config.json", eos_token_id=None)
    assert read(llama_copy).eos_token_ids == {7}
    rewrite(llama_copy / "config.json", eos_token_id=...)
    assert read(llama_copy).eos_token_ids == frozenset()


def test_sampling_defaults(llama_copy: Path) -> None:
    path = llama_copy / "generation_config.json"
    wanted = {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05
    }  # fmt: skip
    rewrite(path, **wanted, num_beams=4, pad_token_id=3, typical_p=None)
    assert read(llama_copy).generation_defaults == wanted
    rewrite(path, do_sample=True, top_k=None)
    assert "top_k" not in read(llama_copy).generation_defaults
    rewrite(path, do_sample=False)
    assert read(llama_copy).generation_defaults == {}
    rewrite(path, do_sample=True, top_p="high")
    with pytest.raises(ModelLoadError, match=r"generation_config.json: field top_p is 'high'"):
        read(llama_copy)


def test_damaged_files_are_named(llama_copy: Path) -> None:
    (llama_copy / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config.json cannot be read as JSON"):
        read(llama_copy)
    (llama_copy / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"config.json holds a JSON list"):
        read(llama_copy)


def test_format_that_contradicts_the_source(gguf_files: dict[str, Path]) -> None:
    source = ModelSource(name="m", format="gguf", path=gguf_files["llama"])
    with pytest.raises(ModelLoadError, match="in format gguf, but load_format is safetensors"):
        read_checkpoint(source, "safetensors")


def test_reading_needs_no_torch(
    hf_checkpoints: dict[str, Path], gguf_files: dict[str, Path]
) -> None:
    script = (
        "import sys; from octavo.core.config import ModelConfig;"
        "from octavo.loader.source import resolve_source;"
        "from octavo.loader.checkpoint import read_checkpoint;"
        "[read_checkpoint(resolve_source(ModelConfig(model=m))) for m in sys.argv[1:]];"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()))"
    )
    models = [str(hf_checkpoints["llama"]), str(gguf_files["llama"])]
    done = subprocess.run(
        [sys.executable, "-c", script, *models], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
