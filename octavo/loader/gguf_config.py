"""GGUF metadata and tensor table to `ModelSpec`, and the ids that begin and end a text.

A GGUF file says less than a config.json: biases and tied embeddings follow from which tensors
there are, the vocabulary from the embedding, llama3 rope scaling from a tensor of divisors. Mistral
models carry the architecture ``llama``.
"""

from __future__ import annotations

from typing import TypeVar

from octavo.core.errors import MissingWeight, ModelLoadError, UnknownArchitecture
from octavo.core.model_spec import ModelSpec, RopeKind, RopeSpec
from octavo.core.types import DtypeName
from octavo.loader.fields import Fields
from octavo.loader.gguf_file import GgufFile

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""``general.architecture`` to the name that a config.json would have."""

Item = TypeVar("Item")

_ROPE_FREQS = "rope_freqs.weight"
_ROPE_KINDS: dict[str, RopeKind] = {"none": "default", "linear": "linear"}
_NO_TOKEN = 2**32 - 1
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """Reads every number and switch of the model.

    Raises:
        UnknownArchitecture: ``general.architecture`` is none that is supported.
        MissingWeight: there is no token embedding.
        ModelLoadError: a key is missing or wrong, or asks for what the engine does not offer.
    """
    kind = Fields(file.metadata, file.path).text_or("general.architecture", "")
    if kind not in ARCHITECTURES:
        raise UnknownArchitecture(
            f"{file.path}: general.architecture is {kind!r}, expected one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    fields = Fields(file.metadata, file.path, prefix=f"{kind}.")
    if fields.integer_or("expert_count", 0, low=0):
        raise fields.error("expert_count", "0: mixtures of experts are not supported")
    num_layers = fields.integer("block_count")
    if num_layers > len(file.tensors):
        raise fields.error("block_count", f"no more than the file's {len(file.tensors)} tensors")
    num_heads = _same_in_all_layers(fields, "attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    num_kv_heads = num_heads
    if fields.has("attention.head_count_kv"):
        num_kv_heads = _same_in_all_layers(fields, "attention.head_count_kv")
    if num_heads % num_kv_heads:
        raise fields.error("attention.head_count_kv", f"a divisor of head_count ({num_heads})")
    first = {name.removeprefix("blk.0.") for name in file.tensors if name.startswith("blk.0.")}
    return ModelSpec(
        architecture=ARCHITECTURES[kind],
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(fields, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rms_norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, fields, head_dim),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="attn_q.bias" in first,
        output_bias="attn_output.bias" in first,
        mlp_bias="ffn_gate.bias" in first,
        qk_norm=kind == "qwen3",
        sliding_window=fields.integer_or("attention.sliding_window", 0, low=0) or None,
        dtype=_dtype(file),
    )


def end_token_ids(file: GgufFile, vocab_size: int) -> frozenset[int]:
    """Tokens that end a text: end of sequence, of turn, of message."""
    fields = Fields(file.metadata, file.path, prefix="tokenizer.ggml.")
    found = (_token_id(fields, name, vocab_size) for name in _END_KEYS)
    return frozenset(token for token in found if token is not None)


def begin_token_id(file: GgufFile, vocab_size: int) -> int | None:
    """The token that begins a text, if the file names one."""
    fields = Fields(file.metadata, file.path, prefix="tokenizer.ggml.")
    return _token_id(fields, "bos_token_id", vocab_size)


def _token_id(fields: Fields, name: str, vocab_size: int) -> int | None:
    token = fields.integer_or(name, _NO_TOKEN, low=0)
    if token == _NO_TOKEN:
        return None
    if token >= vocab_size:
        raise fields.error(name, f"a token id below the vocabulary size ({vocab_size})")
    return token


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise MissingWeight(
            f"{file.path}: tensor token_embd.weight is missing among {len(file.tensors)} tensors"
        )
    return embedding.shape[0]


def _same_in_all_layers(fields: Fields, name: str) -> int:
    """A number, or a list with one number a layer that are all the same."""
    value = fields.get(name)
    if isinstance(value, list):
        if len(set(value)) != 1 or not isinstance(value[0], int) or value[0] < 1:
            raise fields.error(name, "the same whole number for every layer")
        return value[0]
    return fields.integer(name)


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    derived, rest = divmod(hidden_size, num_heads)
    head_dim = fields.integer_or("attention.key_length", derived)
    if rest and not fields.has("attention.key_length"):
        raise fields.error("embedding_length", f"a multiple of attention.head_count ({num_heads})")
    if head_dim % 2:
        raise ModelLoadError(
            f"{fields.where}: heads have {head_dim} values, expected an even number: rotary "
            "embedding turns pairs of values"
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer_or(name, head_dim) != head_dim:
            raise fields.error(name, f"the head size, {head_dim}")
    return head_dim


def _rope(file: GgufFile, fields: Fields, head_dim: int) -> RopeSpec:
    theta = fields.positive_or("rope.freq_base", 10_000.0)
    name = fields.text_or("rope.scaling.type", "none")
    if name not in _ROPE_KINDS:
        raise fields.error("rope.scaling.type", f"one of {', '.join(_ROPE_KINDS)}")
    kind = _ROPE_KINDS[name]
    factor = fields.positive("rope.scaling.factor") if kind == "linear" else 1.0
    # Files of before 2024 have a factor of positions and no type.
    if not fields.has("rope.scaling.type") and fields.has("rope.scale_linear"):
        kind, factor = "linear", fields.positive("rope.scale_linear")
    return RopeSpec(theta=theta, kind=kind, factor=factor, freq_factors=_divisors(file, head_dim))


def _divisors(file: GgufFile, head_dim: int) -> tuple[float, ...] | None:
    """What each rotary frequency is divided by: how converters store llama3 scaling."""
    tensor = file.tensors.get(_ROPE_FREQS)
    if tensor is None:
        return None
    values = file.dequantize(tensor).reshape(-1)
    if tensor.shape != (head_dim // 2,) or not (values > 0).all():
        raise MissingWeight(
            f"{file.path}: tensor {_ROPE_FREQS} has shape {tensor.shape}, expected "
            f"{(head_dim // 2,)} and only values greater than 0"
        )
    return tuple(values.tolist())


def _dtype(file: GgufFile) -> DtypeName:
    """What the matrices are stored in; bfloat16, whose range is float32's, for quantised ones."""
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if types == {"F32"}:
        return "float32"
    return "float16" if types <= {"F16", "F32"} else "bfloat16"
