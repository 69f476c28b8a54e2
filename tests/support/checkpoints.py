"""Writes tiny random checkpoints of every supported family: Hugging Face directories and GGUF files.

Weights are drawn widely enough for logits to differ clearly, norms and biases included, so that a
tensor in the wrong place changes the output. Sizes: 2 layers, hidden 64, 4 heads, 2 KV heads,
300 tokens; K-quants need rows of 256 values and get hidden 256.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 300
BOS, EOS = 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILIES = ("llama", "llama3", "smollm2", "mistral", "qwen2", "qwen3")
GGUF_FAMILIES = ("llama", "llama3", "smollm2", "qwen2", "qwen3")
QUANTIZATIONS = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q4_K",
    "Q5_K",
    "Q6_K",
)
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other one",
    "sixteen tokens in a block, one block in a table, one table in a request",
    "page after page, the cache is read and written",
)
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
_FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": {"rope_theta": 5e5, **LLAMA3_SCALING}}),
    "smollm2": (
        "Llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"},
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


def tiny_config(family: str = "llama", **overrides: Any) -> Any:
    """The transformers configuration of a tiny model; ``overrides`` are its fields."""
    name, fields = _FAMILY[family]
    make = getattr(transformers, f"{name}Config")
    return make(**{**_BASE, **fields, **overrides})


def tiny_model(family: str = "llama", *, seed: int = 0, **overrides: Any) -> Any:
    """A transformers model in float32 with random weights, biases and norms, in eval mode."""
    config = tiny_config(family, **overrides)
    make = getattr(transformers, f"{_FAMILY[family][0]}ForCausalLM")
    generator = torch.Generator().manual_seed(seed)
    model = make(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(config.initializer_range * noise)
    return model.eval()


def write_checkpoint(
    directory: Path,
    family: str = "llama",
    *,
    sharded: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    tokenizer: bool = True,
    **overrides: Any,
) -> Path:
    """Writes config, weights (one safetensors file, or several with an index) and tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    model = tiny_model(family, seed=seed, **overrides).to(dtype)
    model.save_pretrained(directory, max_shard_size="60KB" if sharded else "5GB")
    if tokenizer:
        write_tokenizer(directory)
    return directory


@functools.cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer.to_str()


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 300 tokens, the first three special."""
    return Tokenizer.from_str(_tokenizer_json())


def write_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json with a ChatML template."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL_TOKENS[0],
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[EOS],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_gguf(
    path: Path,
    family: str = "llama",
    *,
    quantization: str = "F32",
    seed: int = 0,
    tokenizer: bool = True,
    **overrides: Any,
) -> Any:
    """Writes a GGUF file; returns the transformers model that holds exactly its weights.

    Matrices are stored in ``quantization``, vectors in float32, as converters do.
    """
    if quantization.endswith("_K"):
        overrides = {"hidden_size": 256, "intermediate_size": 512, **overrides}
    model = tiny_model(family, seed=seed, **overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, gguf_architecture(family))
    _add_hyperparameters(writer, model.config)
    if tokenizer:
        _add_tokenizer(writer)
    _add_tensors(writer, model, family, GGMLQuantizationType[quantization], seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def gguf_architecture(family: str) -> str:
    """The value of ``general.architecture`` for a family."""
    return family if family.startswith("qwen") else "llama"


def _add_hyperparameters(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    elif config.rope_parameters["rope_type"] == "llama3":
        factors = llama3_freq_factors(config.rope_parameters, head_dim)
        writer.add_tensor("rope_freqs.weight", factors)


def llama3_freq_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """What llama.cpp's converter stores for llama3 scaling: a divisor for each frequency."""
    wavelength = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    saved = json.loads(_tokenizer_json())["model"]
    tokens = sorted(saved["vocab"], key=saved["vocab"].__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in saved["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_GGUF_NAMES[stem]}.{kind}"


def _add_tensors(
    writer: gguf.GGUFWriter, model: Any, family: str, kind: GGMLQuantizationType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            permuted = [n for part, n in heads.items() if f".{part}." in name]
            num_heads = permuted[0] if permuted and gguf_architecture(family) == "llama" else 0
            values = parameter.numpy()
            if num_heads:
                values = _interleave(values, num_heads)
            if values.ndim == 1:
                writer.add_tensor(_gguf_name(name), values.copy())
                continue
            stored = _quantize(values, kind, rng)
            writer.add_tensor(_gguf_name(name), stored, raw_dtype=kind)
            read = gguf.quants.dequantize(stored, kind)
            if num_heads:
                read = _deinterleave(read, num_heads)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(read)))


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _deinterleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _quantize(
    values: np.ndarray, kind: GGMLQuantizationType, rng: np.random.Generator
) -> np.ndarray:
    """Stored form of a matrix; random blocks for the K-quants, which gguf cannot quantise."""
    if not kind.name.endswith("_K"):
        return gguf.quants.quantize(values, kind)
    block, size = GGML_QUANT_SIZES[kind]
    shape = (values.shape[0], values.shape[1] // block, size)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    # float16 scales: Q4_K and Q5_K begin with d and dmin, Q6_K ends with d.
    scale = {"Q4_K": 5e-4, "Q5_K": 2.5e-4, "Q6_K": 1e-4}[kind.name]
    centre = {"Q4_K": 7.5, "Q5_K": 15.5}
    if kind.name in centre:
        pair = np.array([scale, scale * centre[kind.name]], dtype=np.float16)
        blocks[..., :4] = pair.view(np.uint8)
    else:
        blocks[..., -2:] = np.array([scale], dtype=np.float16).view(np.uint8)
    return blocks.reshape(values.shape[0], -1)
