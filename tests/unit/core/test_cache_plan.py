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


def plan(max_model_len=1024, memory=MEMORY, **cache):
    return plan_cache(
        SPEC,
        CacheConfig(**cache),
        "bfloat16",
        memory,
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


def refusal(**cache) -> str:
    with pytest.raises(CapacityError) as caught:
        plan(**cache)
    return str(caught.value)


def test_what_does_not_fit_is_told_with_the_ledger_and_the_remedy():
    text = refusal(memory_utilization=0.1)
    for part in ("single block", "weights", "0.10 GiB", "raise memory_utilization (now 0.1)"):
        assert part.lower() in text.lower()
    assert "lower max_model_len" not in text.lower()
    text = refusal(memory_utilization=0.1, max_model_len=None)
    assert "single block" in text and "Raise memory_utilization" in text


def test_the_advice_is_about_the_setting_that_was_given():
    text = refusal(num_blocks=63)
    assert "max_model_len 1,024" in text and "Lower max_model_len to 1,008 or less" in text
    assert "raise num_blocks (now 63) to 64 or more." in text and "memory_utilization" not in text
    text = refusal(kv_cache_memory=63 * 16 * PER_TOKEN)
    assert f"to {64 * 16 * PER_TOKEN:,} or more" in text and "memory_utilization" not in text
    assert plan(num_blocks=64) and plan(kv_cache_memory=64 * 16 * PER_TOKEN)
    text = refusal(kv_cache_memory=100)
    assert "(now 100 bytes)" in text and "ower max_model_len" not in text


def test_more_than_the_machine_has_is_refused():
    most = (GIB - (160 << 20)) // (16 * PER_TOKEN)
    assert plan(num_blocks=most).num_blocks == most
    text = refusal(num_blocks=most + 1)
    assert "num_blocks asks for a KV cache of 0.84 GiB" in text and "weights" in text
    assert f"Lower num_blocks to {most:,} or less, or leave num_blocks out." in text
    text = refusal(kv_cache_memory=10**15)
    assert f"Lower kv_cache_memory to {most * 16 * PER_TOKEN:,} bytes or less" in text
    crowded = MemoryUse(total_bytes=GIB, weight_bytes=2 * GIB, activation_bytes=0)
    with pytest.raises(CapacityError, match="smaller model"):
        plan(num_blocks=64, memory=crowded)
