from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from octavo.core.model_spec import RopeSpec
from octavo.layers.rotary import Rotary, rotate

HEAD_DIM, MAX_POSITION = 16, 512
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position": 64,
}
SPECS = {
    "default": RopeSpec(theta=5e5),
    "linear": RopeSpec(theta=1e4, kind="linear", factor=4.0),
    "llama3": RopeSpec(theta=1e4, kind="llama3", **LLAMA3),
}


def their_embedding(spec: RopeSpec) -> LlamaRotaryEmbedding:
    parameters = {"rope_type": spec.kind, "rope_theta": spec.theta}
    if spec.kind != "default":
        parameters["factor"] = spec.factor
    if spec.kind == "llama3":
        parameters |= {
            "low_freq_factor": spec.low_freq_factor,
            "high_freq_factor": spec.high_freq_factor,
            "original_max_position_embeddings": spec.original_max_position,
        }
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITION,
        rope_parameters=parameters,
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_transformers(spec, dtype):
    positions = torch.tensor([0, 1, 17, 63, 64, 65, 300, MAX_POSITION - 1])
    q, k = (
        torch.randn(len(positions), 4, HEAD_DIM, generator=torch.Generator().manual_seed(n)).to(
            dtype
        )
        for n in (0, 1)
    )
    rotary = Rotary(spec, HEAD_DIM, MAX_POSITION, dtype=dtype, device=torch.device("cpu"))
    rotation = rotary.at(positions)
    cos, sin = their_embedding(spec)(q, positions[None])
    expected = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    for ours, theirs in zip((q, k), expected, strict=True):
        assert torch.equal(rotate(ours, rotation), theirs[0].transpose(0, 1))


def test_input_is_left_alone():
    x = torch.ones(1, 2, HEAD_DIM)
    rotary = Rotary(SPECS["default"], HEAD_DIM, 8, dtype=torch.float32, device=torch.device("cpu"))
    rotate(x, rotary.at(torch.tensor([5])))
    assert torch.equal(x, torch.ones(1, 2, HEAD_DIM))
