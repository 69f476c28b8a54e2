"""The compiled CPU kernels of the package ``octavo-native``: found, chosen, or refused by name.

The package is built from ``native/`` and is optional: without it, or where it does not serve a
model, products and attention run in torch.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from octavo.core import env
from octavo.core.errors import ConfigError
from octavo.core.model_spec import ModelSpec
from octavo.core.types import DtypeName, KvDtypeName

MAX_HEAD_DIM = 256


def extension() -> Any:
    """The compiled module.

    Raises:
        ImportError: it is not installed, or not built for this machine.
    """
    from octavo_native import _native

    return _native


def instruction_sets() -> list[str]:
    """Those that this machine has kernels for, best first; empty if the package is missing."""
    try:
        names: list[str] = extension().available()
    except ImportError:
        return []
    return names


def choose(
    requested: Literal["auto", "native", "torch"],
    spec: ModelSpec,
    block_size: int,
    *,
    device: torch.device,
    dtypes: tuple[DtypeName, KvDtypeName],
    torch_is_quick: bool,
) -> str | None:
    """The instruction set whose kernels run this model, or None for torch.

    Args:
        dtypes: of weights, and of cached K and V.
        torch_is_quick: torch has better products for this processor (bfloat16 in hardware), so that
            ``auto`` stays with it.

    Raises:
        ConfigError: native was asked for, or an instruction set is named in the environment, and
            cannot be had.
    """
    if requested == "torch" or (requested == "auto" and torch_is_quick):
        return None
    found = instruction_sets()
    isa = env.cpu_isa() or (found[0] if found else None)
    reason = _refusal(isa, found, spec, block_size, device=device, dtypes=dtypes)
    if reason is None:
        return isa
    if requested == "native" or env.cpu_isa() is not None:
        raise ConfigError(f"native kernels cannot serve this model: {reason}; use kernels torch")
    return None


def _refusal(
    isa: str | None,
    found: list[str],
    spec: ModelSpec,
    block_size: int,
    *,
    device: torch.device,
    dtypes: tuple[DtypeName, KvDtypeName],
) -> str | None:
    if device.type != "cpu":
        return f"they run on a CPU, not on {device.type}"
    if isa is None:
        return "the package octavo-native is not installed (pip install ./native)"
    if isa not in found:
        return f"this machine has no kernels for {isa}, but for {', '.join(found)}"
    if any(dtype == "float16" for dtype in dtypes):
        return "they have no float16"
    width = extension().width(isa)
    if spec.head_dim % width or block_size % width or spec.head_dim > MAX_HEAD_DIM:
        return (
            f"head_dim {spec.head_dim} and block_size {block_size} must be multiples of {width}, "
            f"and head_dim at most {MAX_HEAD_DIM}"
        )
    return None
