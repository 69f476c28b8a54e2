"""Token embeddings, and the output projection that may share them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import empty_parameter
from octavo.layers.products import PlainProduct, Product, ProductStrategy


class Embedding(nn.Module):
    """Rows of ``weight [vocab_size, hidden_size]``."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden_size, dtype=dtype, device=device)
        self._product: Product | None = None

    def pack_as_output(self, strategy: ProductStrategy) -> None:
        """Prepares `scores`; the weight itself stays, since `forward` reads its rows."""
        self._product = strategy.make(self.weight.data, None)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weight, and of its packed copy if `scores` uses one."""
        shared = self._product is None or isinstance(self._product, PlainProduct)
        return self.weight.nbytes + (0 if shared or not self._product else self._product.num_bytes)

    def forward(self, token_ids: Tensor) -> Tensor:
        """``[num_tokens]`` to ``[num_tokens, hidden_size]``."""
        return F.embedding(token_ids, self.weight)

    def scores(self, hidden: Tensor) -> Tensor:
        """The embedding as output projection: ``[rows, hidden_size]`` to ``[rows, vocab_size]``."""
        return F.linear(hidden, self.weight) if self._product is None else self._product(hidden)
