"""Fills a model's parameters from a checkpoint, or with random numbers.

Every row of every parameter is filled exactly once, and every tensor of the checkpoint is used or
known to be superfluous; anything else is reported, all of it at once, before the first byte is
copied. Tensors are read in pieces by a few threads while one copies, so that little more than the
parameters themselves is in memory at any time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import nn

from octavo.core.errors import MissingWeight
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.gguf_file import GgufFile
from octavo.loader.names import Placement, is_known_surplus, placements
from octavo.loader.safetensors_file import SafetensorsStore

_PIECE_VALUES = 1 << 18
_MAX_THREADS = 8
_PIECES_AHEAD = 2
_NAMES_SHOWN = 10
_DUMMY_SCALE = 0.02


class _Store(Protocol):
    """Tensors by name, wherever they come from."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def file_of(self, name: str) -> Path: ...

    def read(self, name: str, start: int, stop: int) -> torch.Tensor: ...

    def release(self, name: str) -> None: ...


class _GgufStore:
    """A GGUF file as a store; reading dequantises."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.shapes = {name: tensor.shape for name, tensor in file.tensors.items()}

    def file_of(self, name: str) -> Path:
        return self._file.path

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        tensor = self._file.tensors[name]
        if len(tensor.shape) == 1:
            return torch.from_numpy(self._file.dequantize(tensor)[0, start:stop])
        return torch.from_numpy(self._file.dequantize(tensor, start, stop))

    def release(self, name: str) -> None:
        self._file.release(self._file.tensors[name])


class _Piece(NamedTuple):
    """Rows ``start`` to ``stop`` of one tensor; ``last`` ends the tensor."""

    name: str
    placement: Placement
    start: int
    stop: int
    last: bool


def load_weights(
    checkpoint: Checkpoint,
    model: nn.Module,
    *,
    skip: frozenset[str] = frozenset(),
    progress: Callable[[float], None] | None = None,
) -> None:
    """Copies a checkpoint's tensors into the model's parameters, converted to their type.

    Args:
        skip: parameters to leave as they are; their tensors are checked all the same.
        model: has exactly the parameters that `names.placements` speaks of, contiguous, on any
            device.
        progress: is told the share done (0 to 1) from time to time.

    Raises:
        MissingWeight: tensors are absent, surplus or of the wrong shape, or the model has other
            parameters; up to ten names of each kind, with files and shapes.
        ModelLoadError: a file is truncated or damaged.
    """
    store = _open_store(checkpoint)
    table = placements(checkpoint.spec, checkpoint.source.format)
    parameters = dict(model.named_parameters())
    _check_parameters(checkpoint, table, parameters)
    _check_tensors(checkpoint, table, store)
    table = {name: place for name, place in table.items() if place.parameter not in skip}
    total = sum(math.prod(placement.shape) for placement in table.values())
    done = 0
    threads = max(1, min(_MAX_THREADS, torch.get_num_threads()))
    with torch.no_grad(), _single_threaded_torch():
        for piece, values in _read_ahead(store, list(_pieces(table)), threads):
            _copy(parameters[piece.placement.parameter], piece, values)
            done += values.numel()
            if piece.last:
                store.release(piece.name)
                if progress is not None:
                    progress(done / total)


def fill_dummy(model: nn.Module, seed: int) -> None:
    """Fills every parameter with small random numbers (norms: around 1), the same for a seed."""
    generators: dict[torch.device, torch.Generator] = {}
    bound = _DUMMY_SCALE * math.sqrt(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.device not in generators:
                generators[parameter.device] = torch.Generator(parameter.device).manual_seed(seed)
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.uniform_(
                centre - bound, centre + bound, generator=generators[parameter.device]
            )


def _open_store(checkpoint: Checkpoint) -> _Store:
    if checkpoint.gguf is not None:
        return _GgufStore(checkpoint.gguf)
    return SafetensorsStore(checkpoint.source.path)


def _check_parameters(
    checkpoint: Checkpoint, table: dict[str, Placement], parameters: dict[str, nn.Parameter]
) -> None:
    """The table must fill the model's parameters: all of them, whole, and nothing else."""
    filled: dict[str, tuple[int, ...]] = {}
    for placement in table.values():
        rows, *rest = placement.shape
        filled[placement.parameter] = (placement.row_start + rows, *rest)
    problems = []
    for name in sorted(filled.keys() | parameters.keys()):
        actual = tuple(parameters[name].shape) if name in parameters else None
        if actual != filled.get(name):
            problems.append(f"{name} (model: {actual}, checkpoint fills: {filled.get(name)})")
    if problems:
        raise MissingWeight(
            f"the model made for {checkpoint.spec.architecture} and {checkpoint.source.path} "
            f"disagree on {_listed('parameters', problems)}"
        )


def _check_tensors(checkpoint: Checkpoint, table: dict[str, Placement], store: _Store) -> None:
    spec, source = checkpoint.spec, checkpoint.source
    shapes = store.shapes
    missing = [f"{name} {list(table[name].shape)}" for name in table if name not in shapes]
    surplus = [
        f"{name} {list(shapes[name])} in {store.file_of(name).name}"
        for name in shapes
        if name not in table and not is_known_surplus(name, spec, source.format)
    ]
    misshapen = [
        f"{name} in {store.file_of(name).name} (is {list(shapes[name])}, expected "
        f"{list(placement.shape)})"
        for name, placement in table.items()
        if name in shapes and shapes[name] != placement.shape
    ]
    found = [
        _listed(what, names)
        for what, names in (
            ("missing", missing),
            ("surplus", surplus),
            ("of the wrong shape", misshapen),
        )
        if names
    ]
    if found:
        raise MissingWeight(
            f"{source.path}: tensors do not fit {spec.architecture} as configured: "
            f"{'; '.join(found)}. Check that configuration and weights belong together"
        )


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_NAMES_SHOWN])}{more}"


def _pieces(table: dict[str, Placement]) -> Iterator[_Piece]:
    for name, placement in table.items():
        rows = placement.shape[0]
        # Rows of one head trade places, so a head is never split.
        unit = rows // placement.interleaved_heads if placement.interleaved_heads else 1
        per_unit = math.prod(placement.shape[1:]) * unit
        step = max(1, _PIECE_VALUES // per_unit) * unit
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield _Piece(name, placement, start, stop, stop == rows)


@contextmanager
def _single_threaded_torch() -> Iterator[None]:
    """Keeps OpenMP's threads, which spin for a while after each copy, from the readers' cores.

    With them a load takes six times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _read_ahead(
    store: _Store, pieces: list[_Piece], threads: int
) -> Iterator[tuple[_Piece, torch.Tensor]]:
    """Reads pieces in order, ``threads`` of them at the same time."""
    pending: deque[tuple[_Piece, Future[torch.Tensor]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="octavo-load") as pool:
        for piece in pieces:
            future = pool.submit(store.read, piece.name, piece.start, piece.stop)
            pending.append((piece, future))
            if len(pending) > threads * _PIECES_AHEAD:
                oldest, result = pending.popleft()
                yield oldest, result.result()
        for oldest, result in pending:
            yield oldest, result.result()


def _copy(parameter: nn.Parameter, piece: _Piece, values: torch.Tensor) -> None:
    placement = piece.placement
    first = placement.row_start + piece.start
    target = parameter[first : first + piece.stop - piece.start]
    if placement.interleaved_heads:
        half = placement.shape[0] // placement.interleaved_heads // 2
        rest = placement.shape[1:]
        target = target.view(-1, 2, half, *rest)
        values = values.view(-1, half, 2, *rest).transpose(1, 2)
    target.copy_(values)
