from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from support.attention import make_placement, make_spec

from octavo.attention.sdpa import SdpaAttention
from octavo.core.errors import CapacityError
from octavo.runner.kv_tensors import allocate


def test_every_layer_gets_blocks_in_the_back_ends_shape():
    backend = SdpaAttention(make_spec(), make_placement(8, kv_dtype=torch.bfloat16))
    caches = allocate(backend, 3, 10)
    assert len(caches) == 3
    for cache in caches:
        assert cache.key.shape == cache.value.shape == (10, 8, 2, 16)
        assert cache.key.dtype == cache.value.dtype == torch.bfloat16
        assert cache.key.data_ptr() != cache.value.data_ptr()


def resident_bytes() -> int:
    """Anonymous memory only: the system may take back pages of mapped files at any time."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon in /proc/self/status")


@pytest.mark.skipif(platform.system() != "Linux", reason="resident memory is read from /proc")
def test_memory_is_committed_on_use():
    backend = SdpaAttention(make_spec(head_dim=64), make_placement())
    before = resident_bytes()
    caches = allocate(backend, 2, 1 << 15)
    size = sum(tensor.nbytes for cache in caches for tensor in cache)
    assert size == 1 << 30
    assert resident_bytes() - before < size // 16
    caches[0].key[:1000] = 1.0
    assert resident_bytes() - before > caches[0].key[:1000].nbytes // 2


def test_what_cannot_be_allocated_is_said_with_numbers():
    backend = SdpaAttention(make_spec(), make_placement())
    with pytest.raises(CapacityError, match=r"1,000,000,000,000 blocks in 2 layers.*GiB.*Lower"):
        allocate(backend, 2, 10**12)
