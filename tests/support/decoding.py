"""Runs a model over a paged cache without a runner: rows of known tokens, cut as a test likes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from octavo.attention.base import BatchLayout, ForwardContext, Placement
from octavo.attention.select import choose
from octavo.core.config import ModelConfig
from octavo.layers.attention import attention_spec
from octavo.loader.checkpoint import read_checkpoint
from octavo.loader.source import resolve_source
from octavo.loader.weights import load_weights
from octavo.models.decoder import Decoder
from octavo.models.registry import build_model
from octavo.runner import kv_tensors

CPU = torch.device("cpu")


def load_model(path: Path, *, dtype: torch.dtype = torch.float32, pack: bool = True) -> Decoder:
    checkpoint = read_checkpoint(resolve_source(ModelConfig(model=str(path))))
    model = build_model(checkpoint.spec, dtype=dtype, device=CPU)
    load_weights(checkpoint, model)
    if pack:
        model.pack()
    return model


class PagedRows:
    """Rows of tokens in blocks handed out in random order."""

    def __init__(
        self,
        model: Decoder,
        *,
        backend: str = "sdpa",
        num_rows: int = 1,
        max_len: int = 256,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        placement = Placement(
            device=CPU, dtype=model.dtype, kv_dtype=model.dtype, block_size=block_size
        )
        self.model = model
        self.backend = choose(attention_spec(model.spec), placement, backend)
        blocks = -(-max_len // block_size)
        self.caches = kv_tensors.allocate(self.backend, model.spec.num_layers, num_rows * blocks)
        order = np.random.default_rng(seed).permutation(num_rows * blocks)
        self.tables = order.reshape(num_rows, blocks)
        self.tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.computed = [0] * num_rows

    def step(self, counts: dict[int, int]) -> Tensor:
        """Computes the next ``counts[row]`` tokens of each row; hidden states of all of them."""
        rows, lens = list(counts), np.array(list(counts.values()))
        starts = np.array([self.computed[row] for row in rows])
        positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lens, strict=True)])
        row_of = np.repeat(rows, lens)
        size = self.backend.placement.block_size
        layout = BatchLayout(
            slots=self.tables[row_of, positions // size] * size + positions % size,
            query_starts=np.append(0, np.cumsum(lens)),
            context_lens=starts + lens,
            block_tables=self.tables[rows],
        )
        ids = [self.tokens[row][position] for row, position in zip(row_of, positions, strict=True)]
        ctx = ForwardContext(self.backend, self.caches, self.backend.prepare(layout))
        hidden = self.model(torch.tensor(ids), torch.from_numpy(positions), ctx)
        for row, count in counts.items():
            self.computed[row] += count
        return hidden

    def prompt_logits(self, prompt: Sequence[int], *, chunk: int | None = None) -> Tensor:
        """Logits after each token of a prompt given to row 0."""
        self.tokens[0], self.computed[0] = list(prompt), 0
        chunk = chunk or len(prompt)
        parts = [
            self.model.logits(self.step({0: min(chunk, len(prompt) - begin)}))
            for begin in range(0, len(prompt), chunk)
        ]
        return torch.cat(parts)

    def greedy(
        self, prompt: Sequence[int], num_tokens: int, *, chunk: int | None = None
    ) -> list[int]:
        """The most likely continuation of a prompt."""
        logits = self.prompt_logits(prompt, chunk=chunk)
        out: list[int] = []
        for _ in range(num_tokens):
            out.append(int(logits[-1].argmax()))
            self.tokens[0].append(out[-1])
            if len(out) < num_tokens:
                logits = self.model.logits(self.step({0: 1}))
        return out
