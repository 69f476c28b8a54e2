"""The linear layer: a parameter until it is packed, a product afterwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.layers.products import PlainProduct, Product, ProductStrategy


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """A parameter with no values yet; the loader fills it."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Linear(nn.Module):
    """``x @ weight.T + bias``; ``weight [out_features, in_features]``.

    Layers that read the same input are one `Linear` with their outputs side by side.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(out_features, in_features, dtype=dtype, device=device)
        self.bias = empty_parameter(out_features, dtype=dtype, device=device) if bias else None
        self._product: Product | None = None

    def pack(self, strategy: ProductStrategy) -> None:
        """Hands the loaded weight over to ``strategy``; the parameters are gone after this."""
        if self.weight is None:
            return
        self._product = strategy.make(self.weight.data, None if self.bias is None else self.bias)
        self.weight = self.bias = None

    @property
    def weight_bytes(self) -> int:
        """Memory of weight and bias, packed or not."""
        if self._product is not None:
            return self._product.num_bytes
        return sum(parameter.nbytes for parameter in self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """``[rows, in_features]`` to ``[rows, out_features]``."""
        if self._product is not None:
            return self._product(x)
        assert self.weight is not None
        return PlainProduct(self.weight, self.bias)(x)
