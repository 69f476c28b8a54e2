"""config.json of a Hugging Face checkpoint to `ModelSpec`, and the ids that end a text.

Owns which architectures are supported and how their configurations differ. What the engine cannot
compute (other rope scalings, quantised weights, windows in some layers only) is refused by name.
Defaults of absent fields are those of the architecture's configuration class in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from octavo.core.errors import ModelLoadError, UnknownArchitecture
from octavo.core.model_spec import ModelSpec, RopeKind, RopeSpec
from octavo.core.types import DtypeName
from octavo.loader.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How one architecture's configuration differs from the others'."""

    kv_heads: int | None = None
    """num_key_value_heads if absent; None for as many as attention heads."""
    head_dim: int | None = None
    """head_dim if absent; None for hidden_size / num_attention_heads."""
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_bias_field: bool = False
    """attention_bias says whether q, k, v and output projections have biases."""
    mlp_bias_field: bool = False
    window: Literal["never", "always", "switched"] = "never"
    """Whether sliding_window is used: by itself, or only with use_sliding_window."""


_FAMILIES = {
    "LlamaForCausalLM": _Family(attention_bias_field=True, mlp_bias_field=True),
    "MistralForCausalLM": _Family(kv_heads=8, window="always"),
    "Qwen2ForCausalLM": _Family(kv_heads=32, qkv_bias=True, window="switched"),
    "Qwen3ForCausalLM": _Family(
        kv_heads=32, head_dim=128, attention_bias_field=True, qk_norm=True, window="switched"
    ),
}
SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)

Choice = TypeVar("Choice")

_LAYER_KINDS = ("sliding_attention", "full_attention")
_DEFAULT_WINDOW = 4096
_DEFAULT_FULL_LAYERS = 28
_DTYPES: dict[str, DtypeName] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_ROPE_KINDS: dict[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3"}


def spec_from_hf(config: Fields) -> ModelSpec:
    """Reads every number and switch of the model from its config.json.

    Raises:
        UnknownArchitecture: ``architectures`` names none that is supported.
        ModelLoadError: a field is missing or wrong, or asks for what the engine does not offer.
    """
    architecture = _architecture(config)
    family = _FAMILIES[architecture]
    for name in ("quantization_config", "compression_config"):
        quantization = config.object_or_none(name)
        if quantization is not None:
            method = quantization.get("quant_method")
            raise ModelLoadError(
                f"{config.where}: {name} (quant_method {method!r}) is not supported: use the "
                "unquantised checkpoint, or a GGUF file"
            )
    num_heads = config.integer("num_attention_heads")
    absent = family.kv_heads if not config.has("num_key_value_heads") else None
    num_kv_heads = config.integer_or("num_key_value_heads", absent or num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    num_layers = config.integer("num_hidden_layers")
    bias = family.attention_bias_field and config.flag_or("attention_bias", False)
    return ModelSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, family, num_heads),
        max_position=config.integer("max_position_embeddings"),
        rms_norm_eps=config.positive_or("rms_norm_eps", 1e-6),
        rope=_rope(config),
        activation=_choice(config, "hidden_act", "silu", _ACTIVATIONS),
        tie_embeddings=config.flag_or("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or bias,
        output_bias=bias,
        mlp_bias=family.mlp_bias_field and config.flag_or("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(config, family, num_layers),
        dtype=_dtype(config),
    )


def token_ids(fields: Fields, name: str) -> frozenset[int]:
    """A field that holds one token id, a list of them, or null."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise fields.error(name, "a token id, a list of token ids, or null")
    return frozenset(ids)


def _architecture(config: Fields) -> str:
    names = config.texts("architectures")
    for name in names:
        if name in _FAMILIES:
            return name
    raise UnknownArchitecture(
        f"{config.where}: architectures is {names}, expected one of "
        f"{', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _head_dim(config: Fields, family: _Family, num_heads: int) -> int:
    head_dim = config.integer_or("head_dim", family.head_dim)
    if head_dim is None:
        head_dim, rest = divmod(config.integer("hidden_size"), num_heads)
        if rest:
            raise config.error(
                "hidden_size", f"a multiple of num_attention_heads ({num_heads}), or a head_dim"
            )
    if head_dim % 2:
        raise ModelLoadError(
            f"{config.where}: head_dim is {head_dim}, expected an even number: rotary embedding "
            "turns pairs of values"
        )
    return head_dim


def _rope(config: Fields) -> RopeSpec:
    """``rope_parameters`` of transformers 5, or ``rope_theta`` and ``rope_scaling`` of before."""
    scaling = config.object_or_none("rope_parameters") or config.object_or_none("rope_scaling")
    scaling = scaling or Fields({}, config.where)
    if any(isinstance(scaling.get(kind), dict) for kind in _LAYER_KINDS):
        raise config.error("rope_parameters", "one set of parameters for all layers")
    for fields in (config, scaling):
        if fields.positive_or("partial_rotary_factor", 1.0) != 1.0:
            raise fields.error("partial_rotary_factor", "1: partial rotary is not supported")
    theta = config if scaling.get("rope_theta") is None else scaling
    kind_name = "type" if scaling.get("rope_type") is None else "rope_type"
    kind = _choice(scaling, kind_name, "default", _ROPE_KINDS)
    rope = RopeSpec(theta=theta.positive_or("rope_theta", 10_000.0), kind=kind)
    if kind == "default":
        return rope
    if kind == "linear":
        return RopeSpec(theta=rope.theta, kind=kind, factor=scaling.positive("factor"))
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if low >= high:
        raise scaling.error("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeSpec(
        theta=rope.theta,
        kind=kind,
        factor=scaling.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=scaling.integer("original_max_position_embeddings"),
    )


def _sliding_window(config: Fields, family: _Family, num_layers: int) -> int | None:
    """The window in tokens if all layers have it, None if none has it."""
    switched_on = family.window == "always" or config.flag_or("use_sliding_window", False)
    if family.window == "never" or not switched_on:
        return None
    absent = not config.has("sliding_window")
    window = _DEFAULT_WINDOW if absent else config.integer_or("sliding_window", None)
    if window is None:
        return None
    if config.get("layer_types") is not None:
        kinds = config.texts("layer_types")
        if len(kinds) != num_layers or not set(kinds) <= set(_LAYER_KINDS):
            raise config.error("layer_types", f"{num_layers} times {' or '.join(_LAYER_KINDS)}")
        num_full = kinds.count("full_attention")
    elif family.window == "switched":
        num_full = config.integer_or("max_window_layers", _DEFAULT_FULL_LAYERS, low=0)
    else:
        num_full = 0
    if 0 < num_full < num_layers:
        raise ModelLoadError(
            f"{config.where}: sliding_window {window} holds for {num_layers - num_full} of "
            f"{num_layers} layers (layer_types, max_window_layers); a window in some layers only "
            "is not supported"
        )
    return None if num_full else window


def _dtype(config: Fields) -> DtypeName:
    name = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.text_or(name, "float32").removeprefix("torch.")
    if value not in _DTYPES:
        raise config.error(name, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]


def _choice(config: Fields, name: str, default: str, supported: dict[str, Choice]) -> Choice:
    value = config.text_or(name, default)
    if value not in supported:
        raise config.error(name, f"one of {', '.join(supported)}")
    return supported[value]
