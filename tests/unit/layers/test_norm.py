from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from octavo.layers.norm import RmsNorm


def pair(dtype, size=576):
    weight = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours = RmsNorm(size, 1e-5, dtype=dtype, device=torch.device("cpu"))
    theirs = LlamaRMSNorm(size, eps=1e-5).to(dtype)
    ours.weight.data.copy_(weight)
    theirs.weight.data.copy_(weight)
    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 576), (7, 576), (3, 4, 576)])
def test_equals_transformers(dtype, shape):
    ours, theirs = pair(dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.inference_mode():
        assert torch.equal(ours(x), theirs(x))


def test_add_returns_norm_and_sum():
    ours, _ = pair(torch.float32)
    x, residual = torch.randn(2, 3, 576, generator=torch.Generator().manual_seed(1))
    expected = x + residual
    with torch.inference_mode():
        normed, total = ours.add(x, residual)
        assert torch.equal(total, expected)
        assert torch.equal(normed, ours(expected))
