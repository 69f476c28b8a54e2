"""Everything about a checkpoint but its weights: shape, special tokens, sampling defaults.

Quick, and without torch: front end and planner read it as well as the engine. Weights are read by
`weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from octavo.core.errors import ModelLoadError
from octavo.core.model_spec import ModelSpec
from octavo.core.types import LoadFormat
from octavo.loader.fields import Fields
from octavo.loader.gguf_config import begin_token_id, end_token_ids, spec_from_gguf
from octavo.loader.gguf_file import GgufFile, Value
from octavo.loader.hf_config import spec_from_hf, token_ids
from octavo.loader.source import ModelSource

_FLOAT_DEFAULTS = ("temperature", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says about its model."""

    source: ModelSource
    spec: ModelSpec
    load_format: Literal["safetensors", "gguf", "dummy"]
    """Where weights come from."""
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    generation_defaults: dict[str, float | int]
    """Sampling parameters that generation_config.json recommends, by our names."""
    gguf: GgufFile | None = field(default=None, repr=False, compare=False)
    """The open file, if it is one."""

    @property
    def metadata(self) -> Mapping[str, Value] | None:
        """All key-value pairs of a GGUF file, tokenizer and chat template included."""
        return None if self.gguf is None else self.gguf.metadata


def read_checkpoint(source: ModelSource, load_format: LoadFormat = "auto") -> Checkpoint:
    """Reads config.json and generation_config.json, or a GGUF file's metadata and tensor table.

    Raises:
        UnknownArchitecture: the model's architecture is not supported.
        ModelLoadError: a file is missing or damaged, or a field of it; the message names it.
    """
    if load_format not in ("auto", "dummy", source.format):
        raise ModelLoadError(
            f"model {source.name!r} is in format {source.format}, but load_format is {load_format}"
        )
    chosen = "dummy" if load_format == "dummy" else source.format
    if source.format == "gguf":
        return _from_gguf(source, chosen)
    return _from_directory(source, chosen)


def _from_gguf(
    source: ModelSource, load_format: Literal["safetensors", "gguf", "dummy"]
) -> Checkpoint:
    file = GgufFile(source.path)
    spec = spec_from_gguf(file)
    return Checkpoint(
        source=source,
        spec=spec,
        load_format=load_format,
        eos_token_ids=end_token_ids(file, spec.vocab_size),
        bos_token_id=begin_token_id(file, spec.vocab_size),
        generation_defaults={},
        gguf=file,
    )


def _from_directory(
    source: ModelSource, load_format: Literal["safetensors", "gguf", "dummy"]
) -> Checkpoint:
    config = Fields.from_json(source.path / "config.json")
    generation = _generation_config(source.path)
    begin = token_ids(generation, "bos_token_id") or token_ids(config, "bos_token_id")
    return Checkpoint(
        source=source,
        spec=spec_from_hf(config),
        load_format=load_format,
        eos_token_ids=(token_ids(generation, "eos_token_id") or token_ids(config, "eos_token_id")),
        bos_token_id=min(begin, default=None),
        generation_defaults=_sampling_defaults(generation),
    )


def _generation_config(directory: Path) -> Fields:
    path = directory / "generation_config.json"
    return Fields.from_json(path) if path.exists() else Fields({}, path)


def _sampling_defaults(generation: Fields) -> dict[str, float | int]:
    if not generation.flag_or("do_sample", True):
        return {}
    defaults: dict[str, float | int] = {
        name: generation.number(name)
        for name in _FLOAT_DEFAULTS
        if generation.get(name) is not None
    }
    if generation.get("top_k") is not None:
        defaults["top_k"] = generation.integer("top_k", low=-1)
    return defaults
