from __future__ import annotations

from typing import Any

import pytest
from support.checkpoints import FAMILIES, LLAMA3_SCALING, tiny_config

from octavo.core.errors import ModelLoadError, UnknownArchitecture
from octavo.core.model_spec import ModelSpec, RopeSpec
from octavo.loader.fields import Fields
from octavo.loader.hf_config import SUPPORTED_ARCHITECTURES, spec_from_hf, token_ids

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
}


def spec(**changes: Any) -> ModelSpec:
    """Spec of the smallest Llama config with fields changed; ``...`` removes a field."""
    values = {name: value for name, value in {**LLAMA, **changes}.items() if value is not ...}
    return spec_from_hf(Fields(values, "dir/config.json"))


def refused(match: str, **changes: Any) -> None:
    with pytest.raises(ModelLoadError, match=match) as caught:
        spec(**changes)
    assert "dir/config.json" in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_agrees_with_transformers(family: str) -> None:
    config = tiny_config(family)
    values = {**config.to_dict(), "architectures": [f"{type(config).__name__[:-6]}ForCausalLM"]}
    read = spec_from_hf(Fields(values, "config.json"))
    assert read.vocab_size == config.vocab_size
    assert read.hidden_size == config.hidden_size
    assert read.intermediate_size == config.intermediate_size
    assert read.num_layers == config.num_hidden_layers
    assert read.num_heads == config.num_attention_heads
    assert read.num_kv_heads == config.num_key_value_heads
    assert read.head_dim == (getattr(config, "head_dim", None) or 16)
    assert read.max_position == config.max_position_embeddings
    assert read.rms_norm_eps == config.rms_norm_eps
    assert read.rope.theta == config.rope_parameters["rope_theta"]
    assert read.rope.kind == config.rope_parameters["rope_type"]
    assert read.tie_embeddings == config.tie_word_embeddings
    assert read.qkv_bias == (family == "qwen2")
    assert read.output_bias is False
    assert read.qk_norm == (family == "qwen3")
    assert read.sliding_window is None


def test_defaults_of_the_smallest_llama_config() -> None:
    assert spec() == ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_layers=4,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        max_position=2048,
        rms_norm_eps=1e-6,
    )


@pytest.mark.parametrize(
    "layout",
    [
        {"rope_parameters": {"rope_theta": 5e5, **LLAMA3_SCALING}},
        {"rope_scaling": LLAMA3_SCALING, "rope_theta": 5e5},
        {"rope_scaling": {**LLAMA3_SCALING, "type": "llama3", "rope_type": ...}, "rope_theta": 5e5},
    ],
)
def test_llama3_rope_in_every_layout(layout: dict[str, Any]) -> None:
    if "rope_scaling" in layout:
        scaling = {k: v for k, v in layout["rope_scaling"].items() if v is not ...}
        layout = {**layout, "rope_scaling": scaling}
    assert spec(**layout).rope == RopeSpec(
        theta=5e5,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=64,
    )


def test_other_rope_kinds() -> None:
    assert spec(rope_theta=1e6, rope_scaling=None).rope == RopeSpec(theta=1e6)
    linear = {"rope_type": "linear", "factor": 2}
    assert spec(rope_scaling=linear).rope == RopeSpec(kind="linear", factor=2.0)
    refused(
        "rope_type.*'yarn', expected one of default, linear, llama3",
        rope_scaling={"rope_type": "yarn", "factor": 4.0},
    )
    refused("type is 'dynamic'", rope_scaling={"type": "dynamic", "factor": 4.0})
    refused("factor is missing", rope_scaling={"rope_type": "linear"})
    refused("low_freq_factor is missing", rope_scaling={"rope_type": "llama3", "factor": 8.0})
    refused(
        "high_freq_factor is 1.0, expected more",
        rope_scaling={**LLAMA3_SCALING, "high_freq_factor": 1.0},
    )
    refused("partial_rotary_factor is 0.5", partial_rotary_factor=0.5)
    refused(
        "expected one set of parameters for all layers",
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6}},
    )
    nulls = {"rope_type": None, "rope_theta": None}
    assert spec(rope_theta=1e6, rope_scaling=nulls).rope == RopeSpec(theta=1e6)


def test_biases() -> None:
    biased = spec(attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    qwen2 = spec(architectures=["Qwen2ForCausalLM"], num_key_value_heads=2)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)


def test_key_value_heads_absent_and_null() -> None:
    assert spec(architectures=["MistralForCausalLM"], sliding_window=None).num_kv_heads == 8
    qwen = spec(architectures=["Qwen3ForCausalLM"], num_key_value_heads=None)
    assert qwen.num_kv_heads == 8
    refused("num_key_value_heads is 3, expected a divisor", num_key_value_heads=3)


def test_head_dim() -> None:
    assert spec(head_dim=32).head_dim == 32
    assert spec(architectures=["Qwen3ForCausalLM"], num_key_value_heads=2).head_dim == 128
    refused("hidden_size is 65, expected a multiple of num_attention_heads", hidden_size=65)
    refused("head_dim is 7, expected an even number", head_dim=7)


MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "sliding_window": 32}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 32}, None),  # Llama has none, whatever the field says
        ({**MISTRAL, "sliding_window": 32}, 32),
        ({**MISTRAL, "sliding_window": None}, None),
        (MISTRAL, 4096),
        (QWEN, None),
        ({**QWEN, "use_sliding_window": False, "max_window_layers": 2}, None),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 4}, None),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 0}, 32),
        ({**QWEN, "use_sliding_window": True, "sliding_window": None}, None),
        ({**QWEN, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 4}, 32),
        ({**QWEN, "use_sliding_window": True, "layer_types": ["full_attention"] * 4}, None),
    ],
)
def test_sliding_window(changes: dict[str, Any], window: int | None) -> None:
    assert spec(**changes).sliding_window == window


def test_a_window_in_some_layers_only_is_refused() -> None:
    on = {**QWEN, "use_sliding_window": True}
    refused("sliding_window 32 holds for 2 of 4 layers", **on, max_window_layers=2)
    mixed = ["full_attention", *["sliding_attention"] * 3]
    refused("sliding_window 32 holds for 3 of 4 layers", **on, layer_types=mixed)
    refused("layer_types is", **on, layer_types=["chunked_attention"] * 4)
    refused("layer_types is", **on, layer_types=["full_attention"])


def test_activation_and_dtype() -> None:
    assert spec(hidden_act="gelu_pytorch_tanh").activation == "gelu_tanh"
    assert spec(torch_dtype="bfloat16").dtype == "bfloat16"
    assert spec(dtype="torch.float16").dtype == "float16"
    refused("hidden_act is 'relu', expected one of silu", hidden_act="relu")
    refused("torch_dtype is 'float8_e4m3fn', expected one of", torch_dtype="float8_e4m3fn")


@pytest.mark.parametrize("name", [name for name in LLAMA if name != "architectures"])
def test_required_fields(name: str) -> None:
    refused(f"field {name} is missing, expected a whole number", **{name: ...})
    refused(f"field {name} is '64', expected a whole number", **{name: "64"})
    refused(f"field {name} is 0, expected a whole number of 1 or more", **{name: 0})


def test_unknown_architecture_lists_the_supported_ones() -> None:
    with pytest.raises(UnknownArchitecture, match="GPT2LMHeadModel") as caught:
        spec(architectures=["GPT2LMHeadModel"])
    assert all(name in str(caught.value) for name in SUPPORTED_ARCHITECTURES)
    refused("architectures is missing, expected a list of strings", architectures=...)


def test_quantised_weights_are_refused() -> None:
    refused(
        "quantization_config .quant_method 'gptq'. is not supported",
        quantization_config={"quant_method": "gptq"},
    )


def test_token_ids() -> None:
    fields = Fields({"one": 5, "many": [1, 2, 2], "none": None, "bad": [1, "2"], "low": -1}, "f")
    assert token_ids(fields, "one") == {5}
    assert token_ids(fields, "many") == {1, 2}
    assert token_ids(fields, "none") == token_ids(fields, "absent") == frozenset()
    for name in ("bad", "low"):
        with pytest.raises(ModelLoadError, match=f"field {name} is .* expected a token id"):
            token_ids(fields, name)
