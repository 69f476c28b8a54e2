from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import (
    FAMILIES,
    GGUF_FAMILIES,
    QUANTIZATIONS,
    tiny_model,
    write_checkpoint,
    write_gguf,
)
from support.parameters import empty_model, fused_parameters

from octavo.core.config import ModelConfig
from octavo.core.errors import MissingWeight
from octavo.loader import weights
from octavo.loader.checkpoint import Checkpoint, read_checkpoint
from octavo.loader.source import resolve_source
from octavo.loader.weights import fill_dummy, load_weights


def read(path: Path | str) -> Checkpoint:
    return read_checkpoint(resolve_source(ModelConfig(model=str(path))))


def load(path: Path | str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    checkpoint = read(path)
    model = empty_model(checkpoint.spec, dtype)
    load_weights(checkpoint, model)
    return dict(model.named_parameters())


def assert_same(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(loaded[name], value.to(loaded[name].dtype)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_directories_fill_every_parameter(hf_checkpoints: dict[str, Path], family: str) -> None:
    assert_same(load(hf_checkpoints[family]), fused_parameters(tiny_model(family)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shards_and_conversions(tmp_path: Path, dtype: torch.dtype) -> None:
    write_checkpoint(tmp_path / "m", sharded=True, dtype=torch.bfloat16, tokenizer=False)
    stored = {k: v.bfloat16() for k, v in fused_parameters(tiny_model("llama")).items()}
    loaded = load(tmp_path / "m", dtype)
    assert all(value.dtype == dtype for value in loaded.values())
    assert_same(loaded, stored)


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_gguf_files_fill_every_parameter(gguf_files: dict[str, Path], family: str) -> None:
    assert_same(load(gguf_files[family]), fused_parameters(tiny_model(family)))


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_quantised_gguf(tmp_path: Path, kind: str) -> None:
    reference = write_gguf(tmp_path / "q.gguf", "llama", quantization=kind)
    assert_same(load(tmp_path / "q.gguf"), fused_parameters(reference))


def test_biases_of_query_and_key_are_reordered_too(tmp_path: Path) -> None:
    reference = write_gguf(tmp_path / "b.gguf", "llama", attention_bias=True, mlp_bias=True)
    expected = fused_parameters(reference)
    assert "layers.1.attn.qkv.bias" in expected and "layers.1.mlp.down.bias" in expected
    assert_same(load(tmp_path / "b.gguf"), expected)


@pytest.mark.parametrize("piece", [1, 100, 1000, 1 << 18])
def test_pieces_of_any_size_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    reference = write_gguf(tmp_path / "q.gguf", "smollm2", quantization="Q4_1")
    monkeypatch.setattr(weights, "_PIECE_VALUES", piece)
    assert_same(load(tmp_path / "q.gguf"), fused_parameters(reference))


def test_progress_rises_to_one(hf_checkpoints: dict[str, Path]) -> None:
    checkpoint = read(hf_checkpoints["llama"])
    shares: list[float] = []
    load_weights(checkpoint, empty_model(checkpoint.spec), progress=shares.append)
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == 1.0


def test_thread_count_is_restored(hf_checkpoints: dict[str, Path]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        load(hf_checkpoints["llama"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def edited(directory: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    path.unlink()  # what was loaded may still be mapped from it
    save_file(tensors, path)
    return directory


def refusal(path: Path) -> str:
    with pytest.raises(MissingWeight) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_missing_surplus_and_misshapen_tensors_are_all_named(llama_copy: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop("model.layers.1.mlp.up_proj.weight")
        tensors["model.layers.0.mlp.extra.weight"] = torch.zeros(2, 3)
        tensors["model.norm.weight"] = torch.zeros(63)

    message = refusal(edited(llama_copy, edit))
    assert "1 missing: model.layers.1.mlp.up_proj.weight [128, 64];" in message
    assert "1 surplus: model.layers.0.mlp.extra.weight [2, 3] in model.safetensors;" in message
    wrong = "model.norm.weight in model.safetensors (is [63], expected [64])"
    assert f"1 of the wrong shape: {wrong}." in message


def test_long_lists_are_cut(llama_copy: Path) -> None:
    message = refusal(edited(llama_copy, lambda t: [t.pop(n) for n in list(t) if "layers" in n]))
    assert "18 missing: " in message and " and 8 more." in message
    assert message.count("model.layers.") == 10


def test_transposed_and_flattened_tensors_are_misshapen(llama_copy: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].T.contiguous()
        tensors["lm_head.weight"] = tensors["lm_head.weight"].reshape(-1)

    message = refusal(edited(llama_copy, edit))
    assert "2 of the wrong shape" in message
    assert "(is [64, 128], expected [128, 64])" in message
    assert "(is [19200], expected [300, 64])" in message


def test_known_surplus_is_accepted(
    hf_checkpoints: dict[str, Path], llama_copy: Path, tmp_path: Path
) -> None:
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert load(edited(llama_copy, lambda t: t.update({buffer: torch.zeros(8)})))
    tied = write_checkpoint(tmp_path / "tied", "smollm2", tokenizer=False)
    duplicate = edited(tied, lambda t: t.update({"lm_head.weight": torch.zeros(300, 64)}))
    assert_same(load(duplicate), fused_parameters(tiny_model("smollm2")))


def test_gguf_that_lacks_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    checkpoint = read(path)
    assert checkpoint.gguf is not None
    checkpoint.gguf.tensors.pop("blk.1.ffn_gate.weight")
    with pytest.raises(MissingWeight, match=r"1 missing: blk.1.ffn_gate.weight \[128, 64\]"):
        load_weights(checkpoint, empty_model(checkpoint.spec))


def test_model_with_other_parameters(hf_checkpoints: dict[str, Path]) -> None:
    checkpoint = read(hf_checkpoints["llama"])
    other = empty_model(replace(checkpoint.spec, qkv_bias=True, tie_embeddings=True))
    with pytest.raises(MissingWeight, match=r"3 parameters: head\.weight \(model: None") as caught:
        load_weights(checkpoint, other)
    bias = "layers.0.attn.qkv.bias (model: (128,), checkpoint fills: None)"
    assert bias in str(caught.value)


def test_nothing_is_copied_before_all_is_checked(llama_copy: Path) -> None:
    checkpoint = read(edited(llama_copy, lambda t: t.pop("lm_head.weight")))
    model = empty_model(checkpoint.spec)
    with pytest.raises(MissingWeight):
        load_weights(checkpoint, model)
    assert all(parameter.isnan().all() for parameter in model.parameters())


def test_dummy_weights(hf_checkpoints: dict[str, Path]) -> None:
    spec = read(hf_checkpoints["qwen3"]).spec
    one, same, other = (empty_model(spec) for _ in range(3))
    for model, seed in ((one, 7), (same, 7), (other, 8)):
        fill_dummy(model, seed)
    pairs = zip(one.named_parameters(), same.parameters(), other.parameters(), strict=True)
    for (name, value), again, different in pairs:
        assert torch.equal(value, again)
        assert not torch.equal(value, different)
        centre = 1.0 if "norm" in name else 0.0
        assert (value - centre).abs().max() < 0.04, name
        assert value.std() > 0.01, name
    assert len({value.flatten()[0].item() for value in one.parameters()}) > 10


def test_dummy_weights_in_bfloat16(hf_checkpoints: dict[str, Path]) -> None:
    model = empty_model(read(hf_checkpoints["llama"]).spec, torch.bfloat16)
    fill_dummy(model, 0)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.real_model
def test_real_model_equals_transformers(smollm2_reference: Any) -> None:
    """Every tensor of the embedded file, and its configuration, as transformers reads them."""
    checkpoint = read("smollm2")
    model = empty_model(checkpoint.spec)
    load_weights(checkpoint, model)
    config = smollm2_reference.config
    assert (config.num_hidden_layers, config.head_dim) == (30, checkpoint.spec.head_dim)
    assert config.rope_parameters["rope_theta"] == checkpoint.spec.rope.theta
    assert_same(dict(model.named_parameters()), fused_parameters(smollm2_reference))
    assert sum(p.numel() for p in model.parameters()) == checkpoint.spec.num_parameters
