"""Architecture names of checkpoints, and where each one's model is defined.

A family is imported when it is first built, so that a hundred families cost nothing at start.
"""

from __future__ import annotations

from importlib import import_module

import torch

from octavo.core.errors import UnknownArchitecture
from octavo.core.model_spec import ModelSpec
from octavo.models.decoder import Decoder

ARCHITECTURES = {
    "LlamaForCausalLM": "octavo.models.decoder:Decoder",
    "MistralForCausalLM": "octavo.models.decoder:Decoder",
    "Qwen2ForCausalLM": "octavo.models.decoder:Decoder",
    "Qwen3ForCausalLM": "octavo.models.decoder:Decoder",
}
"""Architecture to ``module:class``, a `Decoder` built from (spec, dtype, device)."""


def build_model(spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A model with uninitialised parameters: load them, then call `Decoder.pack`.

    Raises:
        UnknownArchitecture: no family has this name; the message lists those that exist.
    """
    path = ARCHITECTURES.get(spec.architecture)
    if path is None:
        raise UnknownArchitecture(
            f"architecture {spec.architecture!r} is not supported; supported are "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    module, name = path.split(":")
    model: Decoder = getattr(import_module(module), name)(spec, dtype=dtype, device=device)
    return model.eval()
