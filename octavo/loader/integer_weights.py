"""The integer matrices of a quantised checkpoint, by the names of the model's parameters."""

from __future__ import annotations

from collections import defaultdict

import torch

from octavo.loader.checkpoint import Checkpoint
from octavo.loader.gguf_codes import FLOAT_TYPES, read_codes
from octavo.loader.gguf_file import GgufFile
from octavo.loader.names import Placement, placements
from octavo.loader.quantized import (
    INT8,
    QuantizedMatrix,
    concatenated,
    quantize,
)


class IntegerWeights:
    """Matrices of a GGUF file that are quantised in it; read one at a time, when asked for.

    A fused parameter has them if all its pieces are quantised.
    """

    def __init__(self, checkpoint: Checkpoint, file: GgufFile) -> None:
        self._file = file
        table = placements(checkpoint.spec, "gguf")
        pieces: dict[str, list[tuple[str, Placement]]] = defaultdict(list)
        for name, placement in table.items():
            if len(placement.shape) == 2 and name in file.tensors:
                pieces[placement.parameter].append((name, placement))
        self._pieces = {
            parameter: found
            for parameter, found in pieces.items()
            if not any(file.tensors[name].type_name in FLOAT_TYPES for name, _ in found)
        }

    @property
    def parameters(self) -> frozenset[str]:
        """Parameters that have integer matrices."""
        return frozenset(self._pieces)

    @property
    def type_names(self) -> list[str]:
        """The types in which they are stored, most frequent first."""
        names = [self._file.tensors[name].type_name for p in self._pieces.values() for name, _ in p]
        return sorted(set(names), key=lambda name: (-names.count(name), name))

    def read(self, parameter: str, *, whole: bool) -> list[QuantizedMatrix]:
        """The matrices of a parameter, top to bottom; one if their kinds agree.

        Args:
            whole: make one of them in any case, in 8 bits if their kinds differ.
        """
        parts = []
        for name, placement in sorted(self._pieces[parameter], key=lambda item: item[1].row_start):
            tensor = self._file.tensors[name]
            matrix = read_codes(self._file, tensor)
            parts.append(matrix.rows(_order(placement)) if placement.interleaved_heads else matrix)
            self._file.release(tensor)
        if len({part.kind for part in parts}) == 1:
            return [concatenated(parts)]
        if whole:
            return [concatenated([quantize(part.dequantized(), INT8) for part in parts])]
        return parts


def integer_weights(checkpoint: Checkpoint) -> IntegerWeights | None:
    """The integer matrices of a checkpoint that weights will be loaded from; None without any."""
    if checkpoint.gguf is None or checkpoint.load_format != "gguf":
        return None
    found = IntegerWeights(checkpoint, checkpoint.gguf)
    return found if found.parameters else None


def _order(placement: Placement) -> torch.Tensor:
    """Stored row of each row: halves of a head instead of pairs."""
    rows = torch.arange(placement.shape[0])
    return rows.view(placement.interleaved_heads, -1, 2).transpose(1, 2).reshape(-1)
