from __future__ import annotations

import weakref

import pytest
import torch
from support.tiny_models import tiny_decoder, tiny_spec
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from octavo.attention.base import Placement
from octavo.attention.select import choose
from octavo.layers.attention import attention_spec
from octavo.runner.memory import MAX_LOGITS_BYTES, activation_bytes, dummy_step, logits_rows


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of storages that operations return, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._watch(tensor.untyped_storage())
        self.peak = max(self.peak, sum(self.live.values()))
        return out

    def _watch(self, storage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, key, None)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_formula_covers_a_measured_step(name):
    dtype = getattr(torch, name)
    spec = tiny_spec(
        vocab_size=2000,
        hidden_size=192,
        intermediate_size=512,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        max_position=4096,
    )
    model = tiny_decoder(spec, dtype=dtype)
    placement = Placement(device=torch.device("cpu"), dtype=dtype, kv_dtype=dtype, block_size=16)
    backend = choose(attention_spec(spec), placement)
    with torch.inference_mode(), PeakMemory() as memory:
        cache_bytes = dummy_step(model, backend, max_tokens=4096, max_rows=64)
    measured = memory.peak - cache_bytes
    estimate = activation_bytes(
        spec, name, max_tokens=4096, max_rows=64, upcast=model.products.takes_float32
    )
    constant = activation_bytes(spec, name, max_tokens=0, max_rows=0, upcast=False)
    assert measured <= estimate
    assert estimate - constant <= 1.6 * measured


def test_logits_are_bounded():
    assert logits_rows(49152) * 49152 * 4 <= MAX_LOGITS_BYTES
    assert logits_rows(10**9) == 1


def test_prompts_longer_than_the_model_allows_are_split():
    model = tiny_decoder(tiny_spec(max_position=64))
    placement = Placement(
        device=torch.device("cpu"), dtype=torch.float32, kv_dtype=torch.float32, block_size=16
    )
    backend = choose(attention_spec(model.spec), placement)
    for tokens in (1, 64, 100, 200):
        assert dummy_step(model, backend, max_tokens=tokens, max_rows=3) > 0
