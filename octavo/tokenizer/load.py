"""Builds a `Tokenizer` from the files of a Hugging Face model directory.

``tokenizer.json`` is taken as it stands, its post-processor included; the files beside it add
tokens, names for the special ones, and the chat template. A directory without it goes through
`transformers`, which knows how to convert the older formats.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.core.errors import ModelLoadError
from octavo.tokenizer.tokenizer import Tokenizer

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_OLDER_FORMATS = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt")


def load_tokenizer(directory: Path | str) -> Tokenizer:
    """The tokenizer of a model directory.

    Raises:
        ModelLoadError: there are no tokenizer files, or they cannot be read.
    """
    directory = Path(directory)
    if not (directory / "tokenizer.json").is_file():
        return _convert(directory)
    path = directory / "tokenizer.json"
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path} cannot be read as a tokenizer: {error}") from None
    config = _read_json(directory / "tokenizer_config.json")
    declared = _declared_tokens(directory, config)
    named = _named_tokens(directory, config, declared)
    _add_tokens(backend, declared, named, config)
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return Tokenizer(
        backend,
        special_tokens={name: token.content for name, token in named.items()},
        chat_template=_chat_template(directory, config),
    )


def _convert(directory: Path) -> Tokenizer:
    """The slow way, for SentencePiece and other older files."""
    if not any((directory / name).is_file() for name in _OLDER_FORMATS):
        wanted = ", ".join(("tokenizer.json", *_OLDER_FORMATS))
        raise ModelLoadError(
            f"{directory} holds no tokenizer (looked for {wanted}); "
            "name a directory or hub id that has one with --tokenizer"
        )
    try:
        from transformers import AutoTokenizer

        # The untyped call keeps transformers' incomplete annotations out of the type check.
        load: Any = AutoTokenizer.from_pretrained
        converted = load(str(directory), local_files_only=True)
        backend = converted.backend_tokenizer
    except Exception as error:
        raise ModelLoadError(
            f"the tokenizer in {directory} has no tokenizer.json, and transformers cannot convert "
            "its older files (tokenizer.model needs the packages sentencepiece and protobuf): "
            f"{type(error).__name__}: {error}"
        ) from None
    template = converted.chat_template
    return Tokenizer(
        backend,
        special_tokens=dict(converted.special_tokens_map),
        chat_template=_choose(template) if isinstance(template, dict) else template,
    )


def _declared_tokens(directory: Path, config: dict[str, Any]) -> dict[int, AddedToken]:
    """Added tokens by id, from the config or, where that has none, from the older file."""
    if "added_tokens_decoder" in config:
        return {int(i): _added(token) for i, token in config["added_tokens_decoder"].items()}
    older = _read_json(directory / "added_tokens.json")
    special = {_content(config[name]) for name in _NAMES if config.get(name)}
    return {
        i: AddedToken(text, special=text in special, normalized=text not in special)
        for text, i in older.items()
    }


def _named_tokens(
    directory: Path, config: dict[str, Any], declared: dict[int, AddedToken]
) -> dict[str, AddedToken]:
    """Special tokens by name: ``bos_token`` and such, and those that only some models have."""
    values = dict(config)
    if "added_tokens_decoder" not in config:
        values |= _read_json(directory / "special_tokens_map.json")
    if isinstance(values.get("extra_special_tokens"), dict):
        values |= values["extra_special_tokens"]
    by_text = {token.content: token for token in declared.values()}
    names = [*_NAMES, *(name for name in values if name.endswith("_token") and name not in _NAMES)]
    return {
        name: by_text.get(_content(value)) or _added(value)
        for name in names
        if isinstance(value := values.get(name), str | dict) and _content(value)
    }


def _add_tokens(
    backend: Backend,
    declared: dict[int, AddedToken],
    named: dict[str, AddedToken],
    config: dict[str, Any],
) -> None:
    """Adds what tokenizer.json lacks, in the order of ids, then the named tokens, then the rest."""
    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    texts = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [token for _, token in sorted(declared.items()) if repr(token) not in present]
    texts |= {token.content for token in missing}
    special = {token.content for token in named.values()}
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    others = [_added(token) for token in extra] if isinstance(extra, list) else []
    for token in [*named.values(), *others]:
        if token.content not in texts:
            texts.add(token.content)
            missing.append(token)
    for token in missing:
        if token.content in special:
            token.special = True
    if missing:
        backend.add_tokens(missing)


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _added(token: Any) -> AddedToken:
    """An added token from the JSON of either file; a bare string means a special token."""
    if not isinstance(token, dict):
        return AddedToken(str(token), special=True, normalized=False)
    fields = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(**{"special": True, **{k: token[k] for k in fields if k in token}})


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The default template: a file of its own wins over the config."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if template is None:
        template = _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    return _choose(template) if isinstance(template, dict) else template


def _choose(templates: dict[str, str]) -> str | None:
    """The template called default, or the only one there is."""
    if len(templates) == 1:
        return next(iter(templates.values()))
    return templates.get("default")


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON file that may be absent."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds a {type(value).__name__}: expected a JSON object")
    return value
