from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.checkpoints import GGUF_FAMILIES, LLAMA3_SCALING, llama3_freq_factors, write_gguf

from octavo.core.errors import MissingWeight, ModelLoadError, UnknownArchitecture
from octavo.core.model_spec import ModelSpec, RopeSpec
from octavo.loader.gguf_config import begin_token_id, end_token_ids, spec_from_gguf
from octavo.loader.gguf_file import GgufFile

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 2.0**-17,
}
TENSORS = {"token_embd.weight": (300, 64), "output_norm.weight": (64,), "output.weight": (300, 64)}


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> GgufFile:
    architecture = metadata.get("general.architecture")
    writer = gguf.GGUFWriter(path, architecture or "llama")
    if architecture is None:
        writer.kv_data[0].clear()
    for key, value in metadata.items():
        if key != "general.architecture":
            kind = gguf.GGUFValueType.get_type(value)
            if kind == gguf.GGUFValueType.INT32:
                kind = gguf.GGUFValueType.UINT32
            writer.add_key_value(key, value, kind)
    for name, value in tensors.items():
        array = np.zeros(value, np.float32) if isinstance(value, tuple) else value
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.fixture
def file(tmp_path: Path):
    def make(tensors: dict[str, Any] | None = None, **changes: Any) -> GgufFile:
        """The smallest llama file with keys (``__`` for a dot) changed; ``...`` removes a key."""
        metadata = {**LLAMA, **{key.replace("__", "."): value for key, value in changes.items()}}
        metadata = {key: value for key, value in metadata.items() if value is not ...}
        return write(tmp_path / "made.gguf", metadata, {**TENSORS, **(tensors or {})})

    return make


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_spec_agrees_with_the_model_that_was_written(family: str, tmp_path: Path) -> None:
    config = write_gguf(tmp_path / "m.gguf", family).config
    spec = spec_from_gguf(GgufFile(tmp_path / "m.gguf"))
    assert spec.architecture == f"{type(config).__name__[:-6]}ForCausalLM"
    assert spec.vocab_size == config.vocab_size
    assert spec.hidden_size == config.hidden_size
    assert spec.intermediate_size == config.intermediate_size
    assert spec.num_layers == config.num_hidden_layers
    assert spec.num_heads == config.num_attention_heads
    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == (getattr(config, "head_dim", None) or 16)
    assert spec.max_position == config.max_position_embeddings
    assert spec.rms_norm_eps == pytest.approx(config.rms_norm_eps)
    assert spec.rope.theta == config.rope_parameters["rope_theta"]
    assert spec.tie_embeddings == config.tie_word_embeddings
    assert spec.qkv_bias == (family == "qwen2")
    assert spec.qk_norm == (family == "qwen3")
    assert spec.dtype == "float32"


def test_defaults_of_the_smallest_file(file) -> None:
    assert spec_from_gguf(file()) == ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_position=512,
        rms_norm_eps=2.0**-17,
    )


def test_llama3_scaling_is_a_tensor_of_divisors(gguf_files: dict[str, Path]) -> None:
    rope = spec_from_gguf(GgufFile(gguf_files["llama3"])).rope
    expected = llama3_freq_factors({"rope_theta": 5e5, **LLAMA3_SCALING}, 16)
    assert (rope.kind, rope.theta) == ("default", 5e5)
    assert rope.freq_factors == tuple(expected.tolist())
    assert rope.freq_factors[0] == 1.0 and rope.freq_factors[-1] == 8.0


def test_rope_keys(file) -> None:
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    assert spec_from_gguf(file(**linear)).rope == RopeSpec(kind="linear", factor=4.0)
    assert spec_from_gguf(file(llama__rope__scaling__type="none")).rope == RopeSpec()
    assert spec_from_gguf(file(llama__rope__scale_linear=2.0)).rope.factor == 2.0
    assert spec_from_gguf(file(llama__rope__freq_base=1e6)).rope.theta == 1e6
    for changes, why in (
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type is 'yarn', expected one of"),
        ({"llama__rope__scaling__type": "linear"}, "rope.scaling.factor is missing"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count is 8, expected the head size"),
        ({"tensors": {"rope_freqs.weight": (7,)}}, r"rope_freqs.weight has shape \(7,\), expected"),
        ({"tensors": {"rope_freqs.weight": (8,)}}, "only values greater than 0"),
    ):
        with pytest.raises(ModelLoadError, match=why):
            spec_from_gguf(file(**changes))


def test_what_follows_from_the_tensors(file) -> None:
    assert spec_from_gguf(file()).tie_embeddings is False
    biases = {f"blk.0.{n}.bias": (64,) for n in ("attn_q", "attn_output", "ffn_gate")}
    spec = spec_from_gguf(file(tensors=biases))
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, True)
    half = {name: np.zeros(shape, np.float16) for name, shape in TENSORS.items() if len(shape) > 1}
    assert spec_from_gguf(file(tensors=half)).dtype == "float16"


def test_quantised_files_are_bfloat16(tmp_path: Path) -> None:
    for kind in ("Q8_0", "BF16"):
        write_gguf(tmp_path / "q.gguf", "llama", quantization=kind)
        assert spec_from_gguf(GgufFile(tmp_path / "q.gguf")).dtype == "bfloat16"


def test_head_sizes(file) -> None:
    lengths = {"llama__attention__key_length": 32, "llama__attention__value_length": 32}
    assert spec_from_gguf(file(**lengths)).head_dim == 32
    heads = {"llama__attention__head_count_kv": [2, 2]}
    assert spec_from_gguf(file(**heads)).num_kv_heads == 2
    for changes, why in (
        ({"llama__attention__value_length": 8}, "value_length is 8, expected the head size, 16"),
        ({"llama__attention__head_count": 5}, "embedding_length is 64, expected a multiple of"),
        ({"llama__attention__head_count_kv": 3}, "head_count_kv is 3, expected a divisor"),
        ({"llama__attention__head_count_kv": [4, 2]}, "the same whole number for every layer"),
        ({"llama__attention__key_length": 7}, "expected an even number"),
    ):
        with pytest.raises(ModelLoadError, match=why) as caught:
            spec_from_gguf(file(**changes))
        assert "made.gguf" in str(caught.value)


@pytest.mark.parametrize("key", [key for key in LLAMA if key.startswith("llama.")])
def test_required_keys(file, key: str) -> None:
    with pytest.raises(ModelLoadError, match=f"field {key} is missing, expected"):
        spec_from_gguf(file(**{key.replace(".", "__"): ...}))


def test_what_is_refused(file, tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitecture, match="'gemma3', expected one of llama, qwen2, qwen3"):
        spec_from_gguf(file(general__architecture="gemma3"))
    with pytest.raises(ModelLoadError, match="expert_count is 8, expected 0"):
        spec_from_gguf(file(llama__expert_count=8))
    with pytest.raises(ModelLoadError, match="block_count is 4000000000, expected no more than"):
        spec_from_gguf(file(llama__block_count=4_000_000_000))
    bare = write(tmp_path / "e.gguf", {**LLAMA, "llama.block_count": 1}, {"w": (4,)})
    with pytest.raises(MissingWeight, match=r"token_embd\.weight is missing among 1 tensors"):
        spec_from_gguf(bare)


def test_sliding_window(file) -> None:
    assert spec_from_gguf(file(llama__attention__sliding_window=128)).sliding_window == 128
    assert spec_from_gguf(file(llama__attention__sliding_window=0)).sliding_window is None


def test_special_tokens(file) -> None:
    keys = {"eos_token_id": 2, "eot_token_id": 5, "bos_token_id": 1}
    made = file(**{f"tokenizer__ggml__{name}": value for name, value in keys.items()})
    assert end_token_ids(made, 300) == {2, 5}
    assert begin_token_id(made, 300) == 1
    assert end_token_ids(file(), 300) == frozenset()
    assert begin_token_id(file(tokenizer__ggml__bos_token_id=2**32 - 1), 300) is None
    with pytest.raises(ModelLoadError, match="bos_token_id is 300, expected a token id below"):
        begin_token_id(file(tokenizer__ggml__bos_token_id=300), 300)
