"""In which precision a model runs, and with which kernels: decided before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.attention.base import AttentionBackend, Placement
from octavo.attention.native import NativeAttention
from octavo.attention.select import choose
from octavo.core.config import EngineConfig, ModelConfig
from octavo.core.errors import ConfigError
from octavo.core.types import DtypeName, KvDtypeName
from octavo.kernels import native
from octavo.layers.attention import attention_spec
from octavo.layers.products import cpu_has_tiles
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.integer_weights import IntegerWeights, integer_weights
from octavo.loader.quantized import INT4, INT8, Scheme
from octavo.models.base import CausalModel
from octavo.models.decoder import Decoder
from octavo.models.native import MatrixSource, NativeDecoder, Rounded, Stored, as_loaded
from octavo.runner.device import TORCH_DTYPES, Device


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What computes a step, and in which precisions."""

    isa: str | None
    """Instruction set of the native kernels; None for torch."""
    dtype: DtypeName
    """Of what is not quantised."""
    kv_dtype: KvDtypeName
    scheme: Scheme | None = None
    """How weights are rounded on load."""
    stored: IntegerWeights | None = None
    """Integers of the checkpoint that are used as they are."""

    @property
    def quantization(self) -> str:
        """In words."""
        if self.stored is not None:
            return ", ".join(self.stored.type_names)
        return "none" if self.scheme is None else f"int{self.scheme.bits}"


def choose_kernels(config: EngineConfig, checkpoint: Checkpoint, device: Device) -> KernelChoice:
    """The kernels and precisions that the configuration asks for, or the quickest ones.

    Raises:
        ConfigError: what was asked for cannot be had; the message says why.
    """
    spec, wanted = checkpoint.spec, config.model.dtype
    scheme, stored = _choose_quantization(config.model, checkpoint)
    # Native kernels are quick at bfloat16 on every processor.
    small = spec.dtype in ("bfloat16", "float16")
    dtype = "bfloat16" if wanted == "auto" and small else device.resolve_dtype(wanted, spec.dtype)
    kv_dtype = _kv_dtype(config, dtype, device)
    has_integers = scheme is not None or stored is not None or kv_dtype == "int8"
    isa = None
    if config.device.attention_backend == "auto":
        isa = native.choose(
            config.device.kernels,
            spec,
            config.cache.block_size,
            device=device.torch_device,
            dtypes=(dtype, kv_dtype),
            torch_is_quick=cpu_has_tiles() and not has_integers,
        )
    if isa is not None:
        # Norms of a quantised file are float32.
        return KernelChoice(isa, dtype if stored is None else "float32", kv_dtype, scheme, stored)
    for name, value, needs_native in (
        ("quantization", config.model.quantization, scheme is not None),
        ("kv_cache_dtype", kv_dtype, kv_dtype == "int8"),
    ):
        if needs_native:
            raise ConfigError(
                f"{name} {value} needs the native CPU kernels, which do not serve here: choose "
                f"device cpu, kernels auto and attention_backend auto, or leave {name} out"
            )
    dtype = device.resolve_dtype(wanted, spec.dtype)
    return KernelChoice(None, dtype, _kv_dtype(config, dtype, device))


def _choose_quantization(
    config: ModelConfig, checkpoint: Checkpoint
) -> tuple[Scheme | None, IntegerWeights | None]:
    if config.quantization in ("int8", "int4"):
        return INT8 if config.quantization == "int8" else INT4, None
    is_auto = config.quantization == config.dtype == "auto"
    return None, integer_weights(checkpoint) if is_auto else None


def _kv_dtype(config: EngineConfig, dtype: DtypeName, device: Device) -> KvDtypeName:
    wanted = config.cache.kv_cache_dtype
    if wanted == "auto":
        return dtype
    return "int8" if wanted == "int8" else device.resolve_dtype(wanted, dtype)


def pack(
    config: EngineConfig,
    decoder: Decoder,
    kernels: KernelChoice,
    *,
    max_model_len: int,
    num_threads: int,
) -> tuple[CausalModel, AttentionBackend]:
    """The loaded model in the form that its kernels want, and the attention that goes with it."""
    if kernels.isa is None:
        decoder.pack()
        placement = _placement(config, decoder, kernels)
        spec = attention_spec(decoder.spec)
        return decoder, choose(spec, placement, config.device.attention_backend)
    return pack_native(
        config,
        decoder,
        kernels,
        max_model_len=max_model_len,
        num_threads=num_threads,
        source=_matrix_source(kernels),
    )


def pack_native(
    config: EngineConfig,
    decoder: Decoder,
    kernels: KernelChoice,
    *,
    max_model_len: int,
    num_threads: int,
    source: MatrixSource,
) -> tuple[CausalModel, AttentionBackend]:
    """The same for the native kernels, with matrices from ``source``."""
    assert kernels.isa is not None
    # The kernels have threads of their own. torch's would only be in their way: those look for work
    # for a while after each operation, and sampling is too short to be worth it.
    torch.set_num_threads(1)
    placement = _placement(config, decoder, kernels)
    model = NativeDecoder(
        decoder,
        kernels.isa,
        block_size=placement.block_size,
        max_model_len=max_model_len,
        num_threads=num_threads,
        source=source,
    )
    width = native.extension().width(kernels.isa)
    return model, NativeAttention(attention_spec(decoder.spec), placement, width)


def _placement(config: EngineConfig, decoder: Decoder, kernels: KernelChoice) -> Placement:
    return Placement(
        device=decoder.device,
        dtype=decoder.dtype,
        kv_dtype=TORCH_DTYPES[kernels.kv_dtype],
        block_size=config.cache.block_size,
    )


def _matrix_source(kernels: KernelChoice) -> MatrixSource:
    if kernels.stored is not None:
        return Stored(kernels.stored)
    return as_loaded if kernels.scheme is None else Rounded(kernels.scheme)
