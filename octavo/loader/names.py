"""Which parameter, and which of its rows, each tensor of a checkpoint fills: one table.

Our parameters are fused: query, key and value projections are one matrix, gate and up projections
another, so that a step multiplies once. Checkpoints hold the parts.

::

    layers.{i}.attn.qkv.weight      q rows | k rows | v rows      [q + 2 kv, hidden]
    layers.{i}.mlp.gate_up.weight   gate rows | up rows           [2 inter, hidden]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.core.model_spec import ModelSpec
from octavo.loader.source import SourceFormat

# Part of a layer: our name, the checkpoint's names of its parts in the order of rows.
_LAYER: dict[SourceFormat, dict[str, tuple[str, ...]]] = {
    "safetensors": {
        "input_norm": ("input_layernorm",),
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.q_norm": ("self_attn.q_norm",),
        "attn.k_norm": ("self_attn.k_norm",),
        "attn.out": ("self_attn.o_proj",),
        "post_norm": ("post_attention_layernorm",),
        "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
    },
    "gguf": {
        "input_norm": ("attn_norm",),
        "attn.qkv": ("attn_q", "attn_k", "attn_v"),
        "attn.q_norm": ("attn_q_norm",),
        "attn.k_norm": ("attn_k_norm",),
        "attn.out": ("attn_output",),
        "post_norm": ("ffn_norm",),
        "mlp.gate_up": ("ffn_gate", "ffn_up"),
        "mlp.down": ("ffn_down",),
    },
}
_LAYER_PREFIX: dict[SourceFormat, str] = {"safetensors": "model.layers", "gguf": "blk"}
_OUTSIDE: dict[SourceFormat, dict[str, str]] = {
    "safetensors": {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
    "gguf": {"embed": "token_embd", "norm": "output_norm", "head": "output"},
}
# Rotary frequencies follow from the configuration; old checkpoints hold them all the same.
_SURPLUS: dict[SourceFormat, re.Pattern[str]] = {
    "safetensors": re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
    "gguf": re.compile(r"rope_freqs\.weight"),
}
# llama.cpp's converter reorders the rows of these for architecture ``llama`` only.
_INTERLEAVED_ARCHITECTURES = frozenset({"LlamaForCausalLM"})


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a checkpoint's tensor goes: rows ``row_start`` and following of ``parameter``."""

    parameter: str
    row_start: int
    shape: tuple[int, ...]
    """What the tensor must have, rows first."""
    interleaved_heads: int = 0
    """If not 0, rows are stored for interleaved rotary embedding: within each of this many heads,
    row 2j is our row j, and row 2j + 1 our row j + head_dim / 2."""


def placements(spec: ModelSpec, source_format: SourceFormat) -> dict[str, Placement]:
    """Every tensor that a checkpoint of this model must hold, and where it goes."""
    outside = _OUTSIDE[source_format]
    embedding = (spec.vocab_size, spec.hidden_size)
    table = {
        f"{outside['embed']}.weight": Placement("embed.weight", 0, embedding),
        f"{outside['norm']}.weight": Placement("norm.weight", 0, (spec.hidden_size,)),
    }
    if not spec.tie_embeddings:
        table[f"{outside['head']}.weight"] = Placement("head.weight", 0, embedding)
    interleaved = source_format == "gguf" and spec.architecture in _INTERLEAVED_ARCHITECTURES
    for layer in range(spec.num_layers):
        prefix = f"{_LAYER_PREFIX[source_format]}.{layer}"
        for part, names in _LAYER[source_format].items():
            for kind, rows, rest in _parts(spec, part):
                start = 0
                for index, (name, count) in enumerate(zip(names, rows, strict=True)):
                    table[f"{prefix}.{name}.{kind}"] = Placement(
                        f"layers.{layer}.{part}.{kind}",
                        start,
                        (count, *rest),
                        _heads(spec, part, index) if interleaved else 0,
                    )
                    start += count
    return table


def is_known_surplus(name: str, spec: ModelSpec, source_format: SourceFormat) -> bool:
    """Whether a tensor may be in a checkpoint although nothing is filled from it."""
    if spec.tie_embeddings and name == f"{_OUTSIDE[source_format]['head']}.weight":
        return True
    return _SURPLUS[source_format].fullmatch(name) is not None


def _parts(spec: ModelSpec, part: str) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(weight or bias, rows of each piece, rest of the shape) of one part of a layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    if part.endswith("_norm"):
        is_head_norm = part.startswith("attn.")
        if spec.qk_norm or not is_head_norm:
            yield "weight", (spec.head_dim if is_head_norm else hidden,), ()
        return
    rows, columns, has_bias = {
        "attn.qkv": ((spec.q_size, spec.kv_size, spec.kv_size), hidden, spec.qkv_bias),
        "attn.out": ((hidden,), spec.q_size, spec.output_bias),
        "mlp.gate_up": ((inner, inner), hidden, spec.mlp_bias),
        "mlp.down": ((hidden,), inner, spec.mlp_bias),
    }[part]
    yield "weight", rows, (columns,)
    if has_bias:
        yield "bias", rows, ()


def _heads(spec: ModelSpec, part: str, index: int) -> int:
    """Heads of the piece if it is one that rotary embedding turns: q and k, not v."""
    if part != "attn.qkv":
        return 0
    return (spec.num_heads, spec.num_kv_heads, 0)[index]
