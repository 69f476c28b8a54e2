"""Reads GGUF files, versions 2 and 3: metadata, the table of tensors, and the tensors themselves.

The format (little-endian): magic, version, counts, key-value pairs, tensor entries, padding, data.
Everything read is checked against the size of the file first, so that a truncated or damaged file
gives an error that names the spot. The meaning of keys is in `gguf_config`; dequantisation itself
is the `gguf` library's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from octavo.core.errors import ModelLoadError

Value: TypeAlias = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

SUPPORTED_TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# Value type to (struct code, size); strings and arrays have lengths of their own.
_SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4),
    7: ("?", 1), 10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
# Smallest entries possible: a key of no bytes with a one-byte value; a nameless scalar tensor.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One entry of the table. ``shape`` has the rows first, as torch does; offsets in bytes."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    """From the start of the file."""
    num_bytes: int


class GgufFile:
    """An open GGUF file: its metadata, its tensor table and access to the data by memory map.

    Raises:
        ModelLoadError: the file cannot be read, is no GGUF file, is truncated or damaged, or holds
            a tensor of a type that is not supported; the message names field or tensor, file,
            offset, and what was expected.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            raise ModelLoadError(f"{path} cannot be read as a GGUF file: {error}") from error
        reader = _Reader(self._map, path)
        self.version, num_tensors, num_pairs = reader.header()
        self.metadata: dict[str, Value] = dict(reader.pairs(num_pairs))
        self._check_parts()
        self.tensors: dict[str, GgufTensor] = {
            tensor.name: tensor for tensor in reader.tensors(num_tensors, self._alignment())
        }

    def raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The stored bytes, without a copy: read-only, one row of bytes for each row."""
        data = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return data.reshape(math.prod(tensor.shape[:-1]), -1)

    def dequantize(
        self, tensor: GgufTensor, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Values of rows ``start`` to ``stop`` (a vector is one row): float32, 2-D."""
        raw = self.raw(tensor)[start:stop]
        # As a single row: the library works in groups of 16 rows, which are too small for numpy's
        # cost of a call to vanish, and for threads to run side by side.
        values = dequantize(raw.reshape(1, -1), GGMLQuantizationType[tensor.type_name])
        if not values.flags.writeable:  # F32: still the file's own bytes
            values = values.copy()
        return values.reshape(raw.shape[0], -1)

    def release(self, tensor: GgufTensor) -> None:
        """Lets the operating system drop the pages of a tensor that will not be read again."""
        start = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = tensor.offset + tensor.num_bytes - start
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, length)

    def _check_parts(self) -> None:
        parts = self.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise ModelLoadError(
                f"{self.path} is one of {parts} parts (split.count): join them with "
                "`llama-gguf-split --merge` and load the result"
            )

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelLoadError(
                f"{self.path}: general.alignment is {alignment!r}, expected a power of two"
            )
        return alignment


class _Reader:
    """A cursor over the head of the file; nothing is read past the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._size = len(data)
        self._position = 0

    def header(self) -> tuple[int, int, int]:
        """(version, number of tensors, number of key-value pairs)."""
        magic = self._data[:4]
        if magic != _MAGIC:
            raise self._error("magic", 0, f"is {magic!r}, expected {_MAGIC!r}: no GGUF file")
        self._position = 4
        version = self._number("I", 4, "version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = f"is {version}, expected one of {_VERSIONS}"
            if swapped in _VERSIONS:
                why = "is big-endian; only little-endian files can be read"
            raise self._error("version", 4, why)
        num_tensors = self._number("Q", 8, "tensor count")
        num_pairs = self._number("Q", 8, "key-value count")
        self._check_count("tensor count", num_tensors, _MIN_TENSOR_BYTES)
        self._check_count("key-value count", num_pairs, _MIN_PAIR_BYTES)
        return version, num_tensors, num_pairs

    def pairs(self, count: int) -> Iterator[tuple[str, Value]]:
        """The metadata; a key that comes twice is an error."""
        seen = set()
        for index in range(count):
            start = self._position
            key = self._string(f"key {index + 1} of {count}")
            if key in seen:
                raise self._error(f"key {key!r}", start, "comes twice")
            seen.add(key)
            yield key, self._value(key, self._number("I", 4, f"type of {key}"))

    def tensors(self, count: int, alignment: int) -> Iterator[GgufTensor]:
        """The tensor table; data offsets become offsets in the file, and are checked."""
        entries = []
        seen = set()
        for index in range(count):
            start = self._position
            name = self._string(f"name of tensor {index + 1} of {count}")
            if name in seen:
                raise self._error(f"tensor {name!r}", start, "comes twice")
            seen.add(name)
            entries.append(self._entry(name))
        data_start = -(-self._position // alignment) * alignment
        for name, shape, kind, offset in entries:
            if offset % alignment:
                raise self._error(
                    f"tensor {name!r}",
                    data_start + offset,
                    f"begins at data offset {offset}, no multiple of the alignment {alignment}",
                )
            yield self._place(name, shape, kind, data_start + offset)

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        start = self._position
        rank = self._number("I", 4, f"dimensions of tensor {name!r}")
        if not 1 <= rank <= _MAX_DIMENSIONS:
            raise self._error(
                f"tensor {name!r}", start, f"has {rank} dimensions, expected 1 to {_MAX_DIMENSIONS}"
            )
        shape = tuple(self._number("Q", 8, f"shape of tensor {name!r}") for _ in range(rank))
        kind = self._number("I", 4, f"type of tensor {name!r}")
        offset = self._number("Q", 8, f"offset of tensor {name!r}")
        return name, shape[::-1], kind, offset

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        known = kind in GGMLQuantizationType.__members__.values()
        type_name = GGMLQuantizationType(kind).name if known else f"number {kind}"
        if type_name not in SUPPORTED_TYPES:
            raise ModelLoadError(
                f"{self._path}: tensor {name!r} is of type {type_name}, which is not supported; "
                f"supported are {', '.join(SUPPORTED_TYPES)}"
            )
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if 0 in shape or shape[-1] % block:
            raise self._error(
                f"tensor {name!r}",
                offset,
                f"has shape {shape}, expected rows of a multiple of {block} values ({type_name})",
            )
        num_bytes = math.prod(shape) // block * block_bytes
        if offset + num_bytes > self._size:
            raise self._error(
                f"tensor {name!r}",
                offset,
                f"of type {type_name} and shape {shape} needs {num_bytes:,} bytes, but the file "
                f"ends at {self._size:,}: it is truncated or damaged, fetch it again",
            )
        return GgufTensor(
            name=name, shape=shape, type_name=type_name, offset=offset, num_bytes=num_bytes
        )

    def _value(self, key: str, kind: int) -> Value:
        if kind in _SCALARS:
            value: Value = self._number(*_SCALARS[kind], key)
            return value
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        raise self._error(key, self._position - 4, f"has the unknown value type {kind}")

    def _array(self, key: str) -> Value:
        start = self._position
        kind = self._number("I", 4, f"element type of {key}")
        count = self._number("Q", 8, f"length of {key}")
        if kind == _STRING:
            self._check_count(f"length of {key}", count, 8)
            return self._strings(key, count)
        if kind not in _SCALARS:
            raise self._error(key, start, f"is an array of the unknown element type {kind}")
        code, size = _SCALARS[kind]
        self._check_count(f"length of {key}", count, size)
        values: list[int] = np.frombuffer(self._data, f"<{code}", count, self._position).tolist()
        self._position += count * size
        return values

    def _strings(self, key: str, count: int) -> list[str]:
        # The token list of a vocabulary: 10⁵ strings, hence a loop without calls of our own.
        data, size, position = self._data, self._size, self._position
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        for index in range(count):
            begin = position + 8
            if begin > size:
                raise self._too_short(f"{key}[{index}]", position, 8)
            end = begin + unpack(data, position)[0]
            if end > size:
                raise self._too_short(f"{key}[{index}]", position, end - position)
            try:
                strings.append(data[begin:end].decode())
            except UnicodeDecodeError as error:
                raise self._error(f"{key}[{index}]", begin, f"is no UTF-8: {error}") from error
            position = end
        self._position = position
        return strings

    def _string(self, what: str) -> str:
        return self._strings(what, 1)[0]

    def _number(self, code: str, size: int, what: str) -> int:
        start = self._position
        if start + size > self._size:
            raise self._too_short(what, start, size)
        self._position = start + size
        # Also floats and booleans; their type follows from the value type in the file.
        number: int = struct.unpack_from(f"<{code}", self._data, start)[0]
        return number

    def _check_count(self, what: str, count: int, entry_bytes: int) -> None:
        if count * entry_bytes > self._size - self._position:
            raise self._error(
                what,
                self._position - 8,
                f"is {count:,}, which needs {count * entry_bytes:,} bytes or more, but "
                f"{self._size - self._position:,} follow: the file is truncated or damaged",
            )

    def _too_short(self, what: str, offset: int, needed: int) -> ModelLoadError:
        return self._error(
            what,
            offset,
            f"needs {needed:,} bytes, but {max(self._size - offset, 0):,} follow: the file is "
            "truncated or damaged, fetch it again",
        )

    def _error(self, what: str, offset: int, why: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: {what} at offset {offset:,} {why}")
