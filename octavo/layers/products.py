"""How a matrix product runs: the seam behind which native kernels take their place.

After loading, each linear layer hands its weight to one strategy, chosen once for the whole model
by precision, device and instruction set, and keeps only the product that it gets back. A strategy
may store the weight in any form it likes; the original is then given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_TYPICAL_ROWS = 16


class Product(Protocol):
    """A linear map with its weight built in."""

    num_bytes: int
    """Memory of the stored weight and bias."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """``[rows, in_features]`` to ``[rows, out_features]``."""


class PlainProduct:
    """`torch.nn.functional.linear`, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = _bytes(weight, bias)

    def __call__(self, x: Tensor, /) -> Tensor:
        """See `Product`."""
        return F.linear(x, self._weight, self._bias)


class OneDnnProduct:
    """oneDNN on a weight packed for it, on CPUs.

    On most processors a row of the result does not depend on the other rows, bit for bit, while
    `torch.nn.functional.linear` changes kernels with the row count; neither promises it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = bias
        self.num_bytes = _bytes(weight, bias)
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, /) -> Tensor:
        """See `Product`."""
        result: Tensor = self._run(x, self._weight, self._bias, "none", [], "")
        return result


class UpcastProduct:
    """Products in float32 for 16-bit weights and activations, rounded at the end.

    For CPUs without 16-bit arithmetic, where products in bfloat16 take several times as long.
    """

    def __init__(
        self, make: Callable[[Tensor, Tensor | None], Product], weight: Tensor, bias: Tensor | None
    ) -> None:
        self._product = make(weight.float(), None if bias is None else bias.float())
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, /) -> Tensor:
        """See `Product`; the result has the type of ``x``."""
        return self._product(x.float()).to(x.dtype)


class ProductStrategy(NamedTuple):
    """How all the products of a model run."""

    name: str
    """For logs and reports."""
    make: Callable[[Tensor, Tensor | None], Product]
    """(weight ``[out_features, in_features]``, bias) to a product that may hold either."""
    takes_float32: bool = False
    """Whether products take float32 too, and then return it unrounded."""


def choose_products(dtype: torch.dtype, device: torch.device) -> ProductStrategy:
    """The quickest strategy for this precision on this device."""
    plain = ProductStrategy("linear", PlainProduct)
    if device.type != "cpu":
        return plain
    onednn = ProductStrategy("onednn", OneDnnProduct)
    if dtype == torch.float32:
        return onednn if onednn_works(torch.float32) else plain
    if dtype == torch.bfloat16 and cpu_is_quick_at_bfloat16():
        return onednn if onednn_works(torch.bfloat16) else plain
    inner = choose_products(torch.float32, device)
    return ProductStrategy(
        f"{inner.name}, float32",
        lambda weight, bias: UpcastProduct(inner.make, weight, bias),
        takes_float32=True,
    )


def cpu_is_quick_at_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX-512 BF16 or AMX)."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in probes)


def cpu_has_tiles() -> bool:
    """Whether this CPU multiplies whole tiles of bfloat16 at once (AMX)."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def onednn_works(dtype: torch.dtype) -> bool:
    """Whether packed products exist in this build of torch, and agree with the plain ones."""
    weight = torch.linspace(-1, 1, 64 * 96).view(96, 64).to(dtype)
    bias = torch.linspace(-1, 1, 96).to(dtype)
    x = torch.linspace(-1, 1, 3 * 64).view(3, 64).to(dtype)
    try:
        packed = OneDnnProduct(weight, bias)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    expected = PlainProduct(weight.float(), bias.float())(x.float())
    return torch.allclose(packed.float(), expected, rtol=tolerance, atol=tolerance)


def _bytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
