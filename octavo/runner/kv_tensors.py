"""Allocates the KV cache: one tensor of K and one of V for each layer, in the back-end's layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.attention.base import AttentionBackend, LayerCache
from octavo.core.errors import CapacityError


def allocate(backend: AttentionBackend, num_layers: int, num_blocks: int) -> Sequence[LayerCache]:
    """Caches of all layers, with no values yet.

    On a CPU the operating system hands out memory on first touch, so that resident memory grows
    with the blocks that are really used.

    Raises:
        CapacityError: the device has not that much memory.
    """
    placement = backend.placement
    key_shape, value_shape = backend.block_shapes()
    try:
        return [
            LayerCache(
                *(
                    torch.empty(
                        (num_blocks, *shape), dtype=placement.kv_dtype, device=placement.device
                    )
                    for shape in (key_shape, value_shape)
                )
            )
            for _ in range(num_layers)
        ]
    except (RuntimeError, MemoryError) as error:  # torch reports a failed allocation as the former
        per_block = sum(torch.Size(shape).numel() for shape in (key_shape, value_shape))
        size = num_blocks * num_layers * per_block * placement.kv_dtype.itemsize
        raise CapacityError(
            f"the KV cache of {num_blocks:,} blocks in {num_layers} layers ({size / 2**30:.2f} "
            f"GiB) cannot be allocated on {placement.device}: {error}. Lower memory_utilization, "
            "kv_cache_memory or num_blocks"
        ) from error
