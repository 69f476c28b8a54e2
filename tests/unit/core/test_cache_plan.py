from __future__ import annotations

import pytest

from octavo.core.cache_plan import GIB, MemoryUse, plan_cache
from octavo.core.config import CacheConfig
from octavo.core.errors import CapacityError
from octavo.core.model_spec import ModelSpec

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=4096,
)
MEMORY = MemoryUse(
    total_bytes=GIB, weight_bytes=100 << 20, activation_bytes=50 << 20, other_bytes=10 << 20
)
PER_TOKEN = 2 * 4 * 2 * 16 * 2  # K and V, layers, KV heads, head size, bytes


def plan(max_model_len=1024, **cache):
    return plan_cache(
        SPEC,
        CacheConfig(**cache),
        "bfloat16",
        MEMORY,
        default_utilization=0.5,
        max_model_len=max_model_len,
    )


def test_the_cache_gets_what_is_left():
    p = plan()
    left = GIB // 2 - (160 << 20)
    assert p.bytes_per_block == 16 * PER_TOKEN
    assert p.num_blocks == left // p.bytes_per_block
    assert p.cache_bytes <= left < p.cache_bytes + p.bytes_per_block
    assert plan(memory_utilization=0.9).num_blocks > p.num_blocks


def test_explicit_sizes_win():
    assert plan(num_blocks=70).num_blocks == 70
    assert plan(kv_cache_memory=100 * 16 * PER_TOKEN + 5).num_blocks == 100
    assert plan(num_blocks=140, block_size=8).num_tokens == 1120


def test_auto_takes_the_longest_that_fits():
    assert plan(max_model_len=None, num_blocks=10).max_model_len == 160
    assert plan(max_model_len=None).max_model_len == 4096


def test_how_many_requests_fit():
    p = plan(num_blocks=128)
    assert p.num_requests(1024) == 2.0 and p.num_requests(500) == 4.0 and p.num_requests(1) == 128
    ledger = dict(p.ledger())
    assert ledger["blocks"] == "128 of 16 tokens" and ledger["tokens"] == "2,048"
    assert ledger["requests of 1,024"] == "2.0" and ledger["requests of 500"] == "4.0"


@pytest.mark.parametrize("cache", [{"num_blocks": 63}, {"memory_utilization": 0.1}])
def test_what_does_not_fit_is_told_with_the_ledger_and_the_remedy(cache):
    with pytest.raises(CapacityError) as caught:
        plan(**cache)
    text = str(caught.value)
    for part in ("max_model_len 1,024", "weights", "0.10 GiB", "memory_utilization", "Lower"):
        assert part in text
