"""Sampling flags that ``chat`` and ``generate`` share, made from `SamplingParams`."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.cli.options import add_config_options, given_options
from octavo.core.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from octavo.core.params import SamplingParams

ENGINE_PARTS = (ModelConfig, CacheConfig, SchedulerConfig, DeviceConfig, SpeculationConfig)

_NOT_FLAGS = frozenset(
    {
        "logit_bias",
        "allowed_token_ids",
        "bad_words_token_ids",
        "stop_token_ids",
        "structured",
        "n",
        "pooling",
        "seed",
    }
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, and a flag for each field of the engine's configuration."""
    parser.add_argument(
        "model",
        nargs="?",
        default=ModelConfig.__dataclass_fields__["model"].default,
        metavar="MODEL",
        help="alias (smollm2), directory, GGUF file or hub id [%(default)s]",
    )
    add_config_options(parser, *ENGINE_PARTS, skip=frozenset({"model"}))


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The engine options that the user gave, MODEL included."""
    return given_options(args, *ENGINE_PARTS)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each sampling parameter that a command line can express."""
    add_config_options(parser, SamplingParams, skip=_NOT_FLAGS)


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that the user gave."""
    return given_options(args, SamplingParams)
