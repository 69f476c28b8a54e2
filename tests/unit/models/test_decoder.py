from __future__ import annotations

import pytest
import torch
from support.decoding import PagedRows
from support.tiny_models import tiny_decoder, tiny_spec

from octavo.core.model_spec import ModelSpec
from octavo.layers.products import onednn_works

LAYER = [
    "input_norm.weight",
    "attn.qkv.weight",
    "attn.out.weight",
    "post_norm.weight",
    "mlp.gate_up.weight",
    "mlp.down.weight",
]


def names_of(spec: ModelSpec) -> set[str]:
    return {name for name, _ in tiny_decoder(spec, pack=False).named_parameters()}


@pytest.mark.parametrize(
    ("flags", "layer_names", "outside"),
    [
        ({}, [], ["head.weight"]),
        ({"tie_embeddings": True}, [], []),
        ({"qkv_bias": True}, ["attn.qkv.bias"], ["head.weight"]),
        ({"output_bias": True}, ["attn.out.bias"], ["head.weight"]),
        ({"mlp_bias": True}, ["mlp.gate_up.bias", "mlp.down.bias"], ["head.weight"]),
        ({"qk_norm": True}, ["attn.q_norm.weight", "attn.k_norm.weight"], ["head.weight"]),
    ],
)
def test_parameter_names_are_those_the_loader_fills(flags, layer_names, outside):
    expected = {f"layers.{i}.{name}" for i in range(2) for name in [*LAYER, *layer_names]}
    assert names_of(tiny_spec(**flags)) == expected | {"embed.weight", "norm.weight", *outside}


@pytest.mark.parametrize("tied", [True, False])
def test_memory_of_weights_is_counted_before_and_after_packing(tied):
    spec = tiny_spec(tie_embeddings=tied)
    model = tiny_decoder(spec, pack=False)
    tables = 2 * spec.max_position * spec.head_dim // 2 * 4
    assert model.weight_bytes == spec.weight_bytes("float32") + tables
    model.pack()
    packed_copy = spec.vocab_size * spec.hidden_size * 4
    if not tied or model.products.name == "linear":
        packed_copy = 0
    assert model.weight_bytes == spec.weight_bytes("float32") + tables + packed_copy


def test_packing_leaves_results_as_they_were():
    prompt = [5, 90, 17, 17, 3]
    before = PagedRows(tiny_decoder(pack=False)).prompt_logits(prompt)
    after = PagedRows(tiny_decoder()).prompt_logits(prompt)
    assert before.dtype == torch.float32
    assert before.shape == (5, 97)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_bfloat16_logits_are_float32():
    logits = PagedRows(tiny_decoder(dtype=torch.bfloat16)).prompt_logits([5, 90, 17])
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


@pytest.mark.skipif(not onednn_works(torch.float32), reason="plain products promise less")
def test_a_decoding_row_is_the_same_bit_for_bit_alone_and_in_company():
    spec = tiny_spec(
        hidden_size=192, intermediate_size=512, num_heads=3, num_kv_heads=1, head_dim=64
    )
    model = tiny_decoder(spec)
    generator = torch.Generator().manual_seed(0)
    lens = [1, 7, 16, 33, 64, 65, 100, 101]
    prompts = [torch.randint(97, (n,), generator=generator).tolist() for n in lens]
    together = PagedRows(model, num_rows=len(lens))
    together.tokens = [list(prompt) for prompt in prompts]
    for row, n in enumerate(lens):
        if n > 1:
            together.step({row: n - 1})
    company = together.step({row: 1 for row in range(len(lens))})
    for row, prompt in enumerate(prompts):
        alone = PagedRows(model, seed=row + 1)
        alone.tokens = [prompt]
        if len(prompt) > 1:
            alone.step({0: len(prompt) - 1})
        assert torch.equal(alone.step({0: 1})[0], company[row])
