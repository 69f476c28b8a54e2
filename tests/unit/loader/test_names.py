from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from support.parameters import parameter_shapes

from octavo.core.model_spec import ModelSpec
from octavo.loader.names import Placement, is_known_surplus, placements

LLAMA = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=512,
)
SPECS = {
    "llama": LLAMA,
    "biases": replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True),
    "tied": replace(LLAMA, tie_embeddings=True),
    "qwen3": replace(LLAMA, architecture="Qwen3ForCausalLM", qk_norm=True),
}


@pytest.mark.parametrize("source_format", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", SPECS)
def test_every_row_of_every_parameter_is_filled_once(name: str, source_format) -> None:
    filled: dict[str, list[tuple[int, int]]] = defaultdict(list)
    expected = parameter_shapes(SPECS[name])
    for placement in placements(SPECS[name], source_format).values():
        rows, *rest = placement.shape
        assert tuple(rest) == expected[placement.parameter][1:]
        filled[placement.parameter].append((placement.row_start, placement.row_start + rows))
    assert filled.keys() == expected.keys()
    for parameter, spans in filled.items():
        ends = [0, *(stop for _, stop in sorted(spans))]
        assert [start for start, _ in sorted(spans)] == ends[:-1]
        assert ends[-1] == expected[parameter][0]


def test_names_of_both_formats() -> None:
    hf, gguf = (placements(SPECS["biases"], kind) for kind in ("safetensors", "gguf"))
    assert hf["model.layers.2.self_attn.v_proj.bias"] == Placement(
        "layers.2.attn.qkv.bias", 192, (64,)
    )
    assert gguf["blk.2.attn_v.bias"] == Placement("layers.2.attn.qkv.bias", 192, (64,))
    assert hf["model.layers.0.mlp.up_proj.weight"] == gguf["blk.0.ffn_up.weight"]
    assert hf["lm_head.weight"] == gguf["output.weight"] == Placement("head.weight", 0, (300, 64))


def test_only_llama_files_interleave_query_and_key() -> None:
    table = placements(LLAMA, "gguf")
    heads = {name: p.interleaved_heads for name, p in table.items() if p.interleaved_heads}
    layers = range(3)
    assert heads == {
        **{f"blk.{i}.attn_q.weight": 4 for i in layers},
        **{f"blk.{i}.attn_k.weight": 2 for i in layers},
    }
    for spec, kind in ((LLAMA, "safetensors"), (SPECS["qwen3"], "gguf")):
        assert not any(p.interleaved_heads for p in placements(spec, kind).values())


def test_known_surplus() -> None:
    tied = SPECS["tied"]
    assert is_known_surplus("model.layers.0.self_attn.rotary_emb.inv_freq", LLAMA, "safetensors")
    assert is_known_surplus("model.rotary_emb.inv_freq", LLAMA, "safetensors")
    assert is_known_surplus("lm_head.weight", tied, "safetensors")
    assert is_known_surplus("rope_freqs.weight", LLAMA, "gguf")
    assert not is_known_surplus("lm_head.weight", LLAMA, "safetensors")
    assert not is_known_surplus("lm_head.bias", tied, "safetensors")
    assert not is_known_surplus("model.layers.0.self_attn.q_proj.weight_scale", tied, "safetensors")
