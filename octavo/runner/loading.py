"""Models with their weights, and the smaller or rounded ones that guess for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.core.config import EngineConfig, ModelConfig
from octavo.core.errors import ConfigError
from octavo.core.speculation import Speculation
from octavo.loader.checkpoint import Checkpoint, read_checkpoint
from octavo.loader.quantized import INT4
from octavo.loader.source import resolve_source
from octavo.loader.weights import fill_dummy, load_weights
from octavo.models.decoder import Decoder
from octavo.models.native import Rounded
from octavo.models.registry import build_model
from octavo.runner.device import TORCH_DTYPES, Device
from octavo.runner.drafter import DraftModel
from octavo.runner.precision import KernelChoice, choose_kernels, pack, pack_native


def load_model(
    config: ModelConfig,
    checkpoint: Checkpoint,
    kernels: KernelChoice,
    device: Device,
    progress: Callable[[float], None] = lambda _share: None,
) -> Decoder:
    """The model, not packed yet, with the checkpoint's weights or random ones.

    Raises:
        ModelLoadError: they are damaged, or not those of such a model.
    """
    dtype = TORCH_DTYPES[kernels.dtype]
    model = build_model(checkpoint.spec, dtype=dtype, device=device.torch_device)
    if checkpoint.load_format == "dummy":
        fill_dummy(model, config.seed)
    else:
        load_weights(
            checkpoint,
            model,
            skip=frozenset() if kernels.stored is None else kernels.stored.parameters,
            progress=progress,
        )
    return model


def make_draft_model(
    config: EngineConfig,
    decoder: Decoder,
    kernels: KernelChoice,
    device: Device,
    *,
    max_model_len: int,
) -> DraftModel | None:
    """What makes guesses for a loaded model that is not packed yet; None if no model is to.

    Raises:
        ConfigError: it cannot guess for this model; the message says why.
        ModelLoadError: its checkpoint cannot be loaded.
    """
    speculation = config.speculation.parsed
    if speculation is None or not speculation.by_model:
        return None
    if speculation.method == "self":
        return _rounded(config, decoder, kernels, device, max_model_len)
    return _smaller(config, speculation, decoder, device, max_model_len)


def _rounded(
    config: EngineConfig,
    decoder: Decoder,
    kernels: KernelChoice,
    device: Device,
    max_model_len: int,
) -> DraftModel:
    """The model itself in 4 bits, over the same cache."""
    if kernels.isa is None:
        raise _error(
            'the method "self" needs the native CPU kernels, which do not serve here: use "ngram", '
            '"suffix" or "draft_model"'
        )
    if kernels.stored is not None or kernels.scheme is INT4:
        raise _error(
            f'the method "self" gains nothing over weights in {kernels.quantization}: set '
            'quantization to none or int8, or use "ngram" or "suffix"'
        )
    model, backend = pack_native(
        config,
        decoder,
        kernels,
        max_model_len=max_model_len,
        num_threads=device.num_threads,
        source=Rounded(INT4, keeps_parameters=True),
    )
    return DraftModel(model=model, backend=backend, shares_cache=True)


def _smaller(
    config: EngineConfig,
    speculation: Speculation,
    decoder: Decoder,
    device: Device,
    max_model_len: int,
) -> DraftModel:
    """A model of its own, with a cache of its own."""
    assert speculation.model is not None
    small = replace(
        config.model, model=speculation.model, revision=None, tokenizer=None, load_format="auto"
    )
    small_config = replace(config, model=small)
    checkpoint = read_checkpoint(resolve_source(small), small.load_format)
    spec, name = checkpoint.spec, speculation.model
    if spec.vocab_size != decoder.spec.vocab_size:
        raise _error(
            f"the draft model {name} has a vocabulary of {spec.vocab_size:,} tokens, and "
            f"{config.model.model} one of {decoder.spec.vocab_size:,}: they must be the same tokens"
        )
    if spec.max_position < max_model_len:
        raise _error(
            f"the draft model {name} knows positions up to {spec.max_position:,}, and "
            f"max_model_len is {max_model_len:,}: lower it, or use another draft model"
        )
    kernels = choose_kernels(small_config, checkpoint, device)
    loaded = load_model(small, checkpoint, kernels, device)
    model, backend = pack(
        small_config,
        loaded,
        kernels,
        max_model_len=max_model_len,
        num_threads=device.num_threads,
    )
    return DraftModel(model=model, backend=backend, shares_cache=False)


def _error(what: str) -> ConfigError:
    return ConfigError(f"speculative_config: {what}")
