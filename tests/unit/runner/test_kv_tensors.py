from __future__ import annotations

import os
import platform
import subprocess
import sys
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


MEASURE = """
from pathlib import Path
from support.attention import make_placement, make_spec
from octavo.attention.sdpa import SdpaAttention
from octavo.runner.kv_tensors import allocate

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

backend = SdpaAttention(make_spec(head_dim=64), make_placement())
start = resident()
caches = allocate(backend, 2, 1 << 15)
allocated = resident()
caches[0].key[:1000] = 1.0
used = caches[0].key[:1000].nbytes
total = sum(tensor.nbytes for cache in caches for tensor in cache)
print(total, used, allocated - start, resident() - allocated)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="resident memory is read from /proc")
def test_memory_is_committed_on_use():
    """In a process of its own: in this one the allocator may hold memory that was used before."""
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=True,
    )
    total, used, grown_by_allocation, grown_by_use = map(int, done.stdout.split())
    assert total == 1 << 30
    assert grown_by_allocation < total // 16
    assert grown_by_use > used // 2


def test_what_cannot_be_allocated_is_said_with_numbers():
    backend = SdpaAttention(make_spec(), make_placement())
    with pytest.raises(CapacityError, match=r"1,000,000,000,000 blocks in 2 layers.*GiB.*Lower"):
        allocate(backend, 2, 10**12)
