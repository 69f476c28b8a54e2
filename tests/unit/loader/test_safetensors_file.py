from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import write_checkpoint

from octavo.core.errors import MissingWeight, ModelLoadError
from octavo.loader.safetensors_file import INDEX_NAME, SafetensorsStore


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "sharded", sharded=True, tokenizer=False)


def edit_index(directory: Path, edit: Callable[[dict], None]) -> None:
    path = directory / INDEX_NAME
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


def test_single_and_sharded_hold_the_same(hf_checkpoints: dict[str, Path], sharded: Path) -> None:
    single, shards = SafetensorsStore(hf_checkpoints["llama"]), SafetensorsStore(sharded)
    assert len({shards.file_of(name) for name in shards.shapes}) > 2
    assert single.shapes == shards.shapes
    expected = load_file(hf_checkpoints["llama"] / "model.safetensors")
    for name, shape in single.shapes.items():
        assert tuple(expected[name].shape) == shape
        assert torch.equal(shards.read(name, 0, shape[0]), expected[name])
        assert torch.equal(single.read(name, 3, 7), expected[name][3:7])


def test_only_file_of_another_name(llama_copy: Path) -> None:
    (llama_copy / "model.safetensors").rename(llama_copy / "weights.safetensors")
    assert len(SafetensorsStore(llama_copy).shapes) == 21
    (llama_copy / "other.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"holds other.safetensors, weights.safetensors, exp"):
        SafetensorsStore(llama_copy)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="holds no file of that format, expected model"):
        SafetensorsStore(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_truncated_file(llama_copy: Path, keep: int) -> None:
    path = llama_copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match="is truncated or damaged") as caught:
        SafetensorsStore(llama_copy)
    assert f"{path} ({path.stat().st_size:,} bytes)" in str(caught.value)


def test_absent_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(MissingWeight, match="is missing, but model") as caught:
        SafetensorsStore(sharded)
    assert str(shard) in str(caught.value)


def test_tensor_absent_from_its_shard(sharded: Path) -> None:
    edit_index(
        sharded,
        lambda index: index["weight_map"].update(
            {"model.norm.weight": index["weight_map"]["model.embed_tokens.weight"]}
        ),
    )
    with pytest.raises(MissingWeight, match=r"lacks 1 of the \d+ tensors .*: model.norm.weight"):
        SafetensorsStore(sharded)


def test_tensor_in_two_shards(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    both = {**load_file(second), "model.embed_tokens.weight": torch.zeros(2)}
    save_file(both, second)
    with pytest.raises(ModelLoadError, match=r"embed_tokens\.weight is in two files") as caught:
        SafetensorsStore(sharded)
    assert str(first) in str(caught.value) and str(second) in str(caught.value)


def test_damaged_index(sharded: Path) -> None:
    edit_index(sharded, lambda index: index["weight_map"].update({"x": "../../secret"}))
    with pytest.raises(ModelLoadError, match=r"gives '../../secret' for tensor x, expected the na"):
        SafetensorsStore(sharded)
    edit_index(sharded, lambda index: index.pop("weight_map"))
    with pytest.raises(ModelLoadError, match="field weight_map is missing"):
        SafetensorsStore(sharded)


def test_integer_weights_are_refused(llama_copy: Path) -> None:
    save_file({"w": torch.zeros(2, dtype=torch.int8)}, llama_copy / "model.safetensors")
    with pytest.raises(ModelLoadError, match="tensor w is of type I8, which is not supported"):
        SafetensorsStore(llama_copy)
