"""A decoder whose whole step is one call into the compiled CPU kernels.

Weights are packed once, in their own precision; activations are float32. Every row's bits depend on
that row's inputs alone: sums over the hidden size run in order, attention over fixed segments of
the context. So a token and its log-probability are the same alone, in any batch, for any cut of the
prompt, and after preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from octavo.attention.base import ForwardContext, LayerCache
from octavo.attention.native import NativeMetadata
from octavo.core.model_spec import ModelSpec
from octavo.kernels import native
from octavo.layers.attention import attention_spec
from octavo.layers.rotary import inverse_frequencies
from octavo.loader.integer_weights import IntegerWeights
from octavo.loader.quantized import INT8, QuantizedMatrix, Scheme, quantize
from octavo.models.decoder import Decoder

_PARAMETERS = {"qkv": "attn.qkv", "out": "attn.out", "gate_up": "mlp.gate_up", "down": "mlp.down"}

Matrix: TypeAlias = Tensor | QuantizedMatrix


class MatrixSource(Protocol):
    """Where the matrices of linear layers and of the embedding come from."""

    def __call__(self, name: str, parameter: nn.Parameter, *, whole: bool) -> Sequence[Matrix]:
        """The matrices of a parameter, top to bottom; ``whole`` wants a single one.

        The parameter holds no values afterwards, or keeps them if that is said.
        """


def as_loaded(name: str, parameter: nn.Parameter, *, whole: bool) -> Sequence[Matrix]:
    """The parameter's own values."""
    return [release(parameter)]


class Rounded:
    """The parameters' values, rounded.

    Args:
        keeps_parameters: they hold their values afterwards, for another model.
    """

    def __init__(self, scheme: Scheme, *, keeps_parameters: bool = False) -> None:
        self._scheme = scheme
        self._take = nn.Parameter.detach if keeps_parameters else release

    def __call__(self, name: str, parameter: nn.Parameter, *, whole: bool) -> Sequence[Matrix]:
        """See `MatrixSource`. Embedding and output projection, which suffer most, keep 8 bits."""
        is_end = name in ("embed.weight", "head.weight")
        return [quantize(self._take(parameter), INT8 if is_end else self._scheme)]


class Stored:
    """Integer matrices of the checkpoint, and the parameters' own values for the rest."""

    def __init__(self, weights: IntegerWeights) -> None:
        self._weights = weights

    def __call__(self, name: str, parameter: nn.Parameter, *, whole: bool) -> Sequence[Matrix]:
        """See `MatrixSource`."""
        if name not in self._weights.parameters:
            return as_loaded(name, parameter, whole=whole)
        return self._weights.read(name, whole=whole)


class NativeDecoder:
    """Takes over the weights of a loaded, unpacked `Decoder`, which is empty afterwards unless the
    source of the matrices keeps them."""

    def __init__(
        self,
        model: Decoder,
        isa: str,
        *,
        block_size: int,
        max_model_len: int,
        num_threads: int,
        source: MatrixSource = as_loaded,
    ) -> None:
        self._source = source
        self.spec = model.spec
        self.dtype = model.dtype
        self.device = model.device
        self._caches: Sequence[LayerCache] | None = None
        self._model = native.extension().Model(isa, _config(model.spec, block_size, num_threads))
        for index, layer in enumerate(model.layers):
            self._take_layer(index, layer)
        self._take_ends(model)
        self._norm = model.norm.float()
        positions = torch.arange(max_model_len, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(model.spec.rope, model.spec.head_dim))
        self._model.set_rope(angles.cos(), angles.sin())

    @property
    def weight_bytes(self) -> int:
        """Memory of packed weights and rotary tables."""
        return int(self._model.weight_bytes)

    def __call__(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """See `CausalModel.__call__`."""
        if ctx.caches is not self._caches:
            self._bind(ctx.caches)
        step: NativeMetadata = ctx.metadata
        hidden = torch.empty(len(token_ids), self.spec.hidden_size)
        self._model.forward(
            token_ids,
            positions,
            step.slots,
            step.query_starts,
            step.context_lens,
            step.block_tables,
            hidden,
        )
        return hidden

    def normalised(self, hidden: Tensor) -> Tensor:
        """See `CausalModel.normalised`."""
        normed: Tensor = self._norm(hidden)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalModel.logits`."""
        out = torch.empty(len(hidden), self.spec.vocab_size)
        self._model.logits(hidden, out)
        return out

    def _bind(self, caches: Sequence[LayerCache]) -> None:
        """The kernels keep bare pointers, so the tensors are kept alive here."""
        for index, cache in enumerate(caches):
            self._model.set_cache(index, cache.key, cache.value)
        self._caches = caches

    def _take_layer(self, index: int, layer: Any) -> None:
        linears = {
            "qkv": layer.attn.qkv,
            "out": layer.attn.out,
            "gate_up": layer.mlp.gate_up,
            "down": layer.mlp.down,
        }
        for name, linear in linears.items():
            bias = None if linear.bias is None else linear.bias.detach().float()
            parameter = f"layers.{index}.{_PARAMETERS[name]}.weight"
            matrices = self._source(parameter, linear.weight, whole=name != "qkv")
            start = 0
            for matrix in matrices:
                stop = start + matrix.shape[0]
                part = None if bias is None else bias[start:stop]
                self._model.set_linear(index, name, _for_kernels(matrix), part)
                start = stop
        norms = {
            "input": layer.input_norm,
            "post": layer.post_norm,
            "q_norm": layer.attn.q_norm,
            "k_norm": layer.attn.k_norm,
        }
        for name, norm in norms.items():
            if norm is not None:
                self._model.set_norm(index, name, norm.weight.detach().float())

    def _take_ends(self, model: Decoder) -> None:
        """Embedding, final norm and output projection; tied ones share one packed matrix."""
        self._model.set_norm(0, "final", model.norm.weight.detach().float())
        [embedding] = self._source("embed.weight", model.embed.weight, whole=True)
        if model.head is None:
            self._model.set_linear(0, "head", _for_kernels(embedding), None)
        else:
            assert model.head.weight is not None
            [head] = self._source("head.weight", model.head.weight, whole=True)
            self._model.set_embedding(_for_kernels(embedding))
            self._model.set_linear(0, "head", _for_kernels(head), None)


def release(parameter: nn.Parameter) -> Tensor:
    """The parameter's values, which it holds no longer."""
    values = parameter.detach()
    parameter.data = torch.empty(0, dtype=values.dtype)
    return values


def _for_kernels(matrix: Matrix) -> Any:
    return matrix.for_kernels() if isinstance(matrix, QuantizedMatrix) else matrix


def _config(spec: ModelSpec, block_size: int, num_threads: int) -> dict[str, float]:
    attention = attention_spec(spec)
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_layers": spec.num_layers,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "block_size": block_size,
        "num_threads": num_threads,
        "eps": spec.rms_norm_eps,
        "gelu": int(spec.activation == "gelu_tanh"),
        "window": attention.sliding_window or 0,
        "scale": attention.scale,
        "soft_cap": attention.soft_cap or 0.0,
    }
