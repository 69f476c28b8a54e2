"""Quantised GGUF blocks become the integers that they hold."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from octavo.loader.gguf_codes import read_codes
from octavo.loader.gguf_file import GgufFile

ROWS, COLUMNS = 6, 512


@pytest.fixture(params=["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"])
def type_name(request: pytest.FixtureRequest) -> str:
    return request.param


def write(path: Path, type_name: str) -> GgufFile:
    """A file with one tensor of random blocks; their scales are ordinary numbers."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (ROWS, COLUMNS // block, size), dtype=np.uint8)
    for place in {
        "Q4_1": (0, 2),
        "Q5_1": (0, 2),
        "Q4_K": (0, 2),
        "Q5_K": (0, 2),
        "Q6_K": (208,),
    }.get(type_name, (0,)):
        scales = rng.uniform(-0.02, 0.02, (ROWS, COLUMNS // block)).astype(np.float16)
        raw[..., place : place + 2] = scales[..., None].view(np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", raw.reshape(ROWS, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_equal_to_the_library_that_dequantises(tmp_path: Path, type_name: str) -> None:
    file = write(tmp_path / "m.gguf", type_name)
    tensor = file.tensors["t"]
    expected = torch.from_numpy(file.dequantize(tensor))
    matrix = read_codes(file, tensor)
    actual = matrix.dequantized()
    if type_name in ("Q8_0", "Q4_0", "Q4_1"):
        assert torch.equal(actual, expected)
    elif type_name == "Q4_K":  # products of two scales, rounded to half precision
        bound = 2**-10 * expected.view(ROWS, -1, 32).abs().amax(-1, keepdim=True).clamp(min=0.3)
        assert ((actual - expected).view(ROWS, -1, 32).abs() <= 4 * bound).all()
    else:  # 8 bits for each 32 values
        groups = expected.view(ROWS, -1, 32)
        step = groups.abs().amax(-1, keepdim=True) / 127
        assert ((actual.view_as(groups) - groups).abs() <= 0.6 * step).all()
    assert matrix.bits == (4 if type_name.startswith("Q4") else 8)
