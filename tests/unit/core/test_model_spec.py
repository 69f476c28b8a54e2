from __future__ import annotations

import pytest
from support.checkpoints import FAMILIES, tiny_model, write_checkpoint

from octavo.core.config import ModelConfig
from octavo.loader.checkpoint import read_checkpoint
from octavo.loader.source import resolve_source


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_transformers_counts_them(family, tmp_path):
    write_checkpoint(tmp_path / family, family, tokenizer=False)
    spec = read_checkpoint(resolve_source(ModelConfig(model=str(tmp_path / family)))).spec
    parameters = {p.data_ptr(): p.numel() for p in tiny_model(family).parameters()}
    assert spec.num_parameters == sum(parameters.values())
    assert spec.weight_bytes("bfloat16") == 2 * spec.num_parameters
    per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    assert spec.kv_bytes_per_token("float32") == 4 * per_token
    assert spec.decode_flops(100) - spec.decode_flops(0) == 4 * spec.num_layers * spec.q_size * 100
