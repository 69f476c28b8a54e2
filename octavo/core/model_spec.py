"""What a decoder-only transformer is, in numbers: the result of reading a checkpoint's config.

The costs of serving a model (bytes of weights, bytes of KV per token, operations per token) are
derived here, once, for the memory ledger, the planner and the benchmarks alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.types import DTYPE_BYTES, DtypeName, KvDtypeName

KV_SCALE_BYTES = 2
"""Of the scale that a token's K or V of one head has in an 8-bit KV cache."""

RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding, and how it is stretched beyond its training length.

    ``llama3`` is the frequency-dependent scaling of Llama 3.1; ``linear`` divides positions by
    ``factor``; ``default`` uses neither ``factor`` nor the fields after it.
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    freq_factors: tuple[float, ...] | None = None
    """GGUF only: a divisor for each of the head_dim / 2 frequencies, on top of ``kind``; this is
    how such files store llama3 scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder-only transformer of the Llama family.

    ``dtype`` is what the checkpoint stores; what is computed in is decided by the configuration.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float = 1e-5
    rope: RopeSpec = RopeSpec()
    activation: Literal["silu", "gelu_tanh"] = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    dtype: DtypeName = "float32"

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, dtype: KvDtypeName) -> int:
        """Bytes of K and V that one token occupies over all layers."""
        per_head = self.head_dim * DTYPE_BYTES[dtype]
        if dtype == "int8":
            per_head += KV_SCALE_BYTES
        return 2 * self.num_layers * self.num_kv_heads * per_head

    @property
    def num_parameters(self) -> int:
        """Parameters held in memory; a tied output projection is counted once."""
        attention = self.hidden_size * (self.q_size + 2 * self.kv_size)
        attention += self.q_size * self.hidden_size
        attention += self.qkv_bias * (self.q_size + 2 * self.kv_size)
        attention += self.output_bias * self.hidden_size + self.qk_norm * 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        norms = 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * (attention + mlp + norms) + embeddings + self.hidden_size

    def weight_bytes(self, dtype: DtypeName) -> int:
        """Bytes of all parameters when held in ``dtype``."""
        return self.num_parameters * DTYPE_BYTES[dtype]

    def decode_flops(self, context_tokens: int) -> int:
        """Floating-point operations to compute one token that attends to ``context_tokens``."""
        read = self.num_parameters - (
            0 if self.tie_embeddings else self.vocab_size * self.hidden_size
        )
        return 2 * read + 4 * self.num_layers * self.q_size * context_tokens
