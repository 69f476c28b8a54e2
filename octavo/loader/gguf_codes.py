"""The blocks of GGUF's quantised types as codes and scales, without going through floats.

Each block covers 32 values of a row (Q4_K: 256, in eight parts of 32). Layouts, in bytes:

::

    Q8_0  scale f16 | 32 x int8                               scale * q
    Q4_0  scale f16 | 16 x (low: q[i], high: q[i + 16])       scale * (q - 8)
    Q4_1  scale f16 | minimum f16 | 16 x as Q4_0              scale * q + minimum
    Q4_K  d f16 | dmin f16 | 12 bytes: 6-bit scale and minimum of each part |
          4 x 32 x (low: part 2j, high: part 2j + 1)          d * scale * q - dmin * minimum

Other quantised types (Q5_0, Q5_1, Q5_K, Q6_K) are rounded to 8 bits with a scale for each 32
values: finer than what they hold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from octavo.loader.gguf_file import GgufFile, GgufTensor
from octavo.loader.quantized import INT8, QuantizedMatrix, quantize

_BLOCK = 32
_SUPER_BLOCK = 256
_Bytes = npt.NDArray[np.uint8]
_Parts = tuple[_Bytes, npt.NDArray[np.float16], npt.NDArray[np.float16] | None]

FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})


def read_codes(file: GgufFile, tensor: GgufTensor) -> QuantizedMatrix:
    """A quantised tensor ``[n, k]`` in the precision that it is stored in."""
    unpack = _UNPACK.get(tensor.type_name)
    if unpack is None:
        return quantize(torch.from_numpy(file.dequantize(tensor)), INT8)
    n, k = tensor.shape
    codes, scales, minimums = unpack(file.raw(tensor))
    return QuantizedMatrix(
        8 if tensor.type_name == "Q8_0" else 4,
        _BLOCK,
        torch.from_numpy(codes.reshape(n, k)),
        torch.from_numpy(scales.reshape(n, k // _BLOCK)),
        None if minimums is None else torch.from_numpy(minimums.reshape(n, k // _BLOCK)),
    )


def _q8_0(raw: _Bytes) -> _Parts:
    blocks = raw.reshape(-1, 34)
    # From two's complement to an offset of 128.
    return blocks[:, 2:] ^ np.uint8(0x80), _halves(blocks[:, :2]), None


def _q4_0(raw: _Bytes) -> _Parts:
    blocks = raw.reshape(-1, 18)
    return _nibbles(blocks[:, 2:]), _halves(blocks[:, :2]), None


def _q4_1(raw: _Bytes) -> _Parts:
    blocks = raw.reshape(-1, 20)
    return _nibbles(blocks[:, 4:]), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q4_k(raw: _Bytes) -> _Parts:
    blocks = raw.reshape(-1, 144)
    d, dmin = _halves(blocks[:, :2]).astype(np.float32), _halves(blocks[:, 2:4]).astype(np.float32)
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], 1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], 1)
    pairs = blocks[:, 16:].reshape(-1, _SUPER_BLOCK // 64, 1, _BLOCK)
    codes = np.concatenate([pairs & 15, pairs >> 4], 2)
    return (
        codes,
        (d[:, None] * scales).astype(np.float16),
        (-dmin[:, None] * minimums).astype(np.float16),
    )


def _halves(column: _Bytes) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(column).view(np.float16)[:, 0]


def _nibbles(packed: _Bytes) -> _Bytes:
    return np.concatenate([packed & 15, packed >> 4], 1)


_UNPACK: dict[str, Callable[[_Bytes], _Parts]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
}
