"""Octavo: an LLM inference and serving engine built around a paged KV cache.

Importing this package loads no tensor library; the names below are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.params import SamplingParams, Structured
    from octavo.llm import LLM, AsyncLLM

__version__ = "0.1.0"

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "Structured", "__version__"]

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.llm",
    "SamplingParams": "octavo.core.params",
    "Structured": "octavo.core.params",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
