"""What an engine tells the world about itself once it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.cache_plan import CachePlan
from octavo.core.model_spec import ModelSpec
from octavo.core.types import DtypeName, KvDtypeName, PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts learned while starting; sent from the engine's process to the server's."""

    model: str
    spec: ModelSpec
    cache_plan: CachePlan
    max_model_len: int
    dtype: DtypeName
    kv_dtype: KvDtypeName
    device: str
    attention_backend: str
    num_threads: int
    max_num_batched_tokens: int
    max_num_seqs: int
    quantization: str = "none"
    """What weights are rounded to, in words: ``int8``, or the types of a GGUF file."""
    policy: PolicyName | None = None
    """Whether priorities of requests count; None if the engine does not say."""
    enable_prefix_caching: bool = True
    step_size_reason: str = ""
    """Why ``max_num_batched_tokens`` is what it is."""
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent on each part of the start, in order."""

    @property
    def weights(self) -> str:
        """Precision of the weights, in words."""
        return self.dtype if self.quantization == "none" else self.quantization
