"""How much memory a step of the largest size needs besides weights and KV cache.

By a formula on a CPU, where nothing could tell peaks of ours from others'; by a dummy step on a
GPU, where torch's allocator counts.
"""

from __future__ import annotations

import numpy as np
import torch

from octavo.attention.base import AttentionBackend, BatchLayout, ForwardContext
from octavo.attention.chunks import MAX_MASK_ELEMENTS
from octavo.attention.one_token import MAX_GROUP_BYTES
from octavo.core.model_spec import ModelSpec
from octavo.core.types import DTYPE_BYTES, DtypeName
from octavo.models.base import CausalModel
from octavo.runner import kv_tensors

MAX_LOGITS_BYTES = 64 << 20
"""Logits held at once; more rows go in several parts."""
_COPIES_OF_LOGITS = 5
"""The logits, and what sampling makes of them: probabilities, sorted values and their indices."""
_BYTES_PER_MASK_ELEMENT = 20
"""The mask, and distances and flags while it is made."""


def logits_rows(vocab_size: int) -> int:
    """Rows of float32 logits to compute at once."""
    return max(1, MAX_LOGITS_BYTES // (4 * vocab_size))


def activation_bytes(
    spec: ModelSpec, dtype: DtypeName, *, max_tokens: int, max_rows: int, upcast: bool
) -> int:
    """Peak of temporary tensors in a step of ``max_tokens`` tokens and ``max_rows`` samples.

    The largest of: the feed-forward layer, the attention layer with a context as long as the
    model allows and a full group of one-token rows, the norm, and the logits.

    Args:
        upcast: products run in float32 although ``dtype`` is shorter.
    """
    size = DTYPE_BYTES[dtype]
    wide = 4 if upcast else 0
    width = spec.q_size + 2 * spec.kv_size
    residual = 2 * spec.hidden_size * size
    feed_forward = 3 * spec.intermediate_size * size
    feed_forward += (spec.hidden_size + 3 * spec.intermediate_size) * wide
    attention = (3 * width + 3 * spec.q_size) * size + (spec.hidden_size + width) * wide
    norm = 4 * spec.hidden_size * 4
    per_token = residual + max(feed_forward, attention, norm)
    context = 4 * spec.max_position * spec.kv_size * size
    rows = min(max_rows, logits_rows(spec.vocab_size))
    logits = rows * spec.vocab_size * 4 * _COPIES_OF_LOGITS
    masks = MAX_MASK_ELEMENTS * _BYTES_PER_MASK_ELEMENT
    return max(max_tokens * per_token + context + MAX_GROUP_BYTES, logits) + masks


def measured_activation_bytes(
    model: CausalModel, backend: AttentionBackend, *, max_tokens: int, max_rows: int
) -> int:
    """The same for a GPU, from torch's count of a dummy step."""
    device = model.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    cache_bytes = dummy_step(model, backend, max_tokens=max_tokens, max_rows=max_rows)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - held - cache_bytes
    rows = min(max_rows, logits_rows(model.spec.vocab_size))
    return peak + rows * model.spec.vocab_size * 4 * (_COPIES_OF_LOGITS - 1)


def dummy_step(
    model: CausalModel, backend: AttentionBackend, *, max_tokens: int, max_rows: int
) -> int:
    """Computes prompts of ``max_tokens`` tokens in all, and logits, in a cache of its own.

    Returns:
        Bytes of that cache.
    """
    block_size = backend.placement.block_size
    num_blocks = -(-max_tokens // block_size)
    caches = kv_tensors.allocate(backend, model.spec.num_layers, num_blocks + 1)
    longest = min(model.spec.max_position, max_tokens) // block_size * block_size or max_tokens
    starts = np.append(np.arange(0, max_tokens, longest), max_tokens)
    lens = np.diff(starts)
    first_blocks = starts[:-1] // block_size
    layout = BatchLayout(
        slots=np.arange(max_tokens),
        query_starts=starts,
        context_lens=lens,
        block_tables=first_blocks[:, None] + np.arange(-(-longest // block_size)),
    )
    ctx = ForwardContext(backend, caches, backend.prepare(layout))
    positions = np.arange(max_tokens) - np.repeat(starts[:-1], lens)
    token_ids = torch.zeros(max_tokens, dtype=torch.int64, device=model.device)
    hidden = model(token_ids, torch.from_numpy(positions).to(model.device), ctx)
    model.logits(hidden[: min(max_rows, max_tokens, logits_rows(model.spec.vocab_size))])
    return sum(tensor.nbytes for cache in caches for tensor in cache)
