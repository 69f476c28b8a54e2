"""The environment variables that Octavo reads, all of them here: parse or raise.

``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_TOKEN`` are read by ``huggingface_hub`` itself.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from octavo.core.errors import ConfigError

_FLAGS = {"1": True, "true": True, "0": False, "false": False, "": False}
_ISAS = ("avx512_vnni", "avx512", "avx2", "portable")
_FORMATS = ("text", "json")
LOG_FORMAT = "OCTAVO_LOG_FORMAT"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Variable(NamedTuple):
    """What an environment variable does."""

    meaning: str
    """In Markdown, as the reference page shows it."""
    is_secret: bool = False


VARIABLES = {
    "OCTAVO_CHECK_INVARIANTS": Variable(
        "`1`: verify every block and reference count after each step"
    ),
    "OCTAVO_CPU_ISA": Variable(
        f"native kernels: {', '.join(f'`{isa}`' for isa in _ISAS)}; else the best"
    ),
    "OCTAVO_LOG_LEVEL": Variable("`DEBUG`, `INFO` (default), `WARNING` or `ERROR`"),
    "OCTAVO_LOG_FORMAT": Variable("`text` (default) or `json`; as `--log-format`"),
    "OCTAVO_API_KEY": Variable("an API key, as `--api-key`", is_secret=True),
    "OCTAVO_API_KEYS": Variable(
        "API keys, as in the lines of `--api-key-file`, with commas between them", is_secret=True
    ),
    "OCTAVO_METRICS_KEY": Variable("as `--metrics-key`", is_secret=True),
    "OCTAVO_SSL_KEYFILE_PASSWORD": Variable("as `--ssl-keyfile-password`", is_secret=True),
    "HF_HUB_OFFLINE": Variable("`1`: models come from the local cache alone"),
    "HF_HOME": Variable("where models from the hub are kept"),
    "HF_TOKEN": Variable("opens restricted models of the hub", is_secret=True),
    "CUDA_VISIBLE_DEVICES": Variable("the GPUs that torch may see"),
    "OMP_WAIT_POLICY": Variable("`PASSIVE`: torch's idle threads sleep instead of spinning"),
}
"""All that have a say, those of libraries included."""


def check_invariants() -> bool:
    """``OCTAVO_CHECK_INVARIANTS=1``: verify every block and reference count after each step."""
    raw = os.environ.get("OCTAVO_CHECK_INVARIANTS", "")
    if raw.lower() not in _FLAGS:
        raise ConfigError(f"OCTAVO_CHECK_INVARIANTS={raw!r}: use 1 or 0")
    return _FLAGS[raw.lower()]


def cpu_isa() -> str | None:
    """``OCTAVO_CPU_ISA``: the instruction set that native kernels use, one of
    avx512_vnni, avx512, avx2 and portable; None for the best that this machine has."""
    raw = os.environ.get("OCTAVO_CPU_ISA", "").lower()
    if raw not in (*_ISAS, ""):
        raise ConfigError(f"OCTAVO_CPU_ISA={raw!r}: use one of {', '.join(_ISAS)}")
    return raw or None


def log_level() -> str:
    """``OCTAVO_LOG_LEVEL``: DEBUG, INFO (default), WARNING or ERROR."""
    raw = os.environ.get("OCTAVO_LOG_LEVEL", "INFO").upper()
    if raw not in _LEVELS:
        raise ConfigError(f"OCTAVO_LOG_LEVEL={raw!r}: use one of {', '.join(_LEVELS)}")
    return raw


def log_format() -> str:
    """``OCTAVO_LOG_FORMAT``: text (default) or json."""
    raw = os.environ.get(LOG_FORMAT, "").lower() or _FORMATS[0]
    if raw not in _FORMATS:
        raise ConfigError(f"{LOG_FORMAT}={raw!r}: use {' or '.join(_FORMATS)}")
    return raw


def api_key() -> str | None:
    """``OCTAVO_API_KEY``: one API key."""
    return os.environ.get("OCTAVO_API_KEY") or None


def api_keys() -> str | None:
    """``OCTAVO_API_KEYS``: what a key file holds, with commas or line ends between entries."""
    return os.environ.get("OCTAVO_API_KEYS") or None


def metrics_key() -> str | None:
    """``OCTAVO_METRICS_KEY``: the key of ``/metrics``."""
    return os.environ.get("OCTAVO_METRICS_KEY") or None


def ssl_keyfile_password() -> str | None:
    """``OCTAVO_SSL_KEYFILE_PASSWORD``: the password of the private key for HTTPS."""
    return os.environ.get("OCTAVO_SSL_KEYFILE_PASSWORD")
