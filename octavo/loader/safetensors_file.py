"""Reads the safetensors files of a Hugging Face directory, single or sharded with an index.

Owns which files make up a checkpoint and that each holds what the index says. Parsing and memory
mapping are the `safetensors` library's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from octavo.core.errors import MissingWeight, ModelLoadError
from octavo.loader.fields import Fields

INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_DTYPES = ("F32", "F16", "BF16", "F64")


class _Entry(NamedTuple):
    shape: tuple[int, ...]
    file: Path


class SafetensorsStore:
    """The tensors of a directory; files stay memory-mapped while the store lives.

    Raises:
        MissingWeight: a shard of the index, or a tensor of a shard, is absent.
        ModelLoadError: a file is truncated or damaged, or holds a tensor of a type that is not
            supported.
    """

    def __init__(self, directory: Path) -> None:
        self._entries: dict[str, _Entry] = {}
        self._files: dict[Path, Any] = {}
        shards = _shards(directory)
        for path in shards or [_single_file(directory)]:
            self._open(path)
        for path, names in shards.items():
            self._check_shard(path, names)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._entries[name].file

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows ``start`` to ``stop`` of a tensor, in the type in which they are stored."""
        tensor: torch.Tensor = self._files[self._entries[name].file].get_tensor(name)
        return tensor[start:stop]

    def release(self, name: str) -> None:
        """Nothing to do: the pages of a mapped file are the operating system's to reclaim."""

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            names = list(file.keys())
            slices = [file.get_slice(name) for name in names]
        except FileNotFoundError:
            raise MissingWeight(f"{path} is missing, but {INDEX_NAME} names it") from None
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(
                f"{path} ({_size(path)}) cannot be read as safetensors: {error}. It is truncated "
                "or damaged, fetch it again"
            ) from error
        self._files[path] = file
        for name, part in zip(names, slices, strict=True):
            dtype = part.get_dtype()
            if dtype not in _DTYPES:
                raise ModelLoadError(
                    f"{path}: tensor {name} is of type {dtype}, which is not supported; supported "
                    f"are {', '.join(_DTYPES)}"
                )
            other = self._entries.get(name)
            if other is not None:
                raise ModelLoadError(f"tensor {name} is in two files: {other.file} and {path}")
            self._entries[name] = _Entry(tuple(part.get_shape()), path)

    def _check_shard(self, path: Path, names: list[str]) -> None:
        absent = [n for n in names if n not in self._entries or self._entries[n].file != path]
        if absent:
            raise MissingWeight(
                f"{path} lacks {len(absent)} of the {len(names)} tensors that {INDEX_NAME} says it "
                f"holds: {', '.join(absent[:10])}"
            )


def _single_file(directory: Path) -> Path:
    """model.safetensors, or the only file of that format."""
    if (directory / _SINGLE_NAME).is_file():
        return directory / _SINGLE_NAME
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    found = ", ".join(file.name for file in files[:10]) or "no file of that format"
    raise ModelLoadError(
        f"{directory} holds {found}, expected {_SINGLE_NAME}, or {INDEX_NAME} and its shards"
    )


def _shards(directory: Path) -> dict[Path, list[str]]:
    """Names of the tensors in each file of the index; empty if there is no index."""
    index = directory / INDEX_NAME
    if not index.is_file():
        return {}
    weight_map = Fields.from_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: field weight_map is missing, expected tensor: file pairs")
    shards: dict[Path, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelLoadError(
                f"{index}: weight_map gives {file!r} for tensor {name}, expected the name of a "
                "file in the same directory"
            )
        shards.setdefault(directory / file, []).append(name)
    return shards


def _size(path: Path) -> str:
    try:
        return f"{path.stat().st_size:,} bytes"
    except OSError:
        return "of unknown size"
