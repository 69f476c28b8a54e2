from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.vocabularies import TRICKY_TEXTS, byte_level_backend, sentencepiece_vocabulary
from tokenizers import AddedToken, processors

from octavo.core.errors import ModelLoadError
from octavo.tokenizer.load import load_tokenizer

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
    "unk_token": None,
}
TEXTS = (*TRICKY_TEXTS, "<tool> x<tool>y <pad><|extra|> <|vision|>!")


def _token(content: str, **flags: bool) -> dict[str, Any]:
    token = {"content": content, "lstrip": False, "rstrip": False, "normalized": False}
    return {**token, "single_word": False, "special": True, **flags}


def _write(directory: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    if not (directory / "tokenizer.json").exists():
        byte_level_backend().save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def _plain(directory: Path) -> None:
    _write(directory, CONFIG)


def _without_config(directory: Path) -> None:
    _write(directory)


def _bos_by_post_processor(directory: Path) -> None:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    backend.save(str(directory / "tokenizer.json"))
    # The post-processor stands, whatever these say.
    _write(directory, {**CONFIG, "add_bos_token": False, "add_eos_token": True})


def _tokens_declared_in_config(directory: Path) -> None:
    size = byte_level_backend().get_vocab_size()
    declared = {
        "1": _token("<|im_start|>"),
        "2": _token("<|im_end|>", rstrip=True),  # differs from tokenizer.json: wins
        str(size + 1): _token("<tool>", special=False, lstrip=True),
        str(size): _token("<|vision|>"),
    }
    extra = ["<|extra|>", "<|vision|>"]
    config = {**CONFIG, "pad_token": "<pad>", "image_token": "<|vision|>"}
    _write(
        directory, {**config, "added_tokens_decoder": declared, "additional_special_tokens": extra}
    )


def _older_files(directory: Path) -> None:
    size = byte_level_backend().get_vocab_size()
    _write(
        directory,
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>"},
        special_tokens_map={"bos_token": "<|im_start|>", "pad_token": _token("<pad>")},
        added_tokens={"<tool>": size, "<pad>": size + 1},
    )


def _named_in_a_dict(directory: Path) -> None:
    _write(directory, {**CONFIG, "extra_special_tokens": {"image_token": "<|vision|>"}})


def _special_tokens_split(directory: Path) -> None:
    _write(directory, {**CONFIG, "split_special_tokens": True})


def _qwen2(directory: Path) -> None:
    from transformers import Qwen2Tokenizer

    model = json.loads(byte_level_backend().to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    Qwen2Tokenizer(vocab=model["vocab"], merges=merges).save_pretrained(directory)


def _llama(directory: Path) -> None:
    from transformers import LlamaTokenizer

    vocabulary, merges = sentencepiece_vocabulary()
    tokenizer = LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    tokenizer.save_pretrained(directory)


@pytest.mark.parametrize(
    "write",
    [
        _plain,
        _without_config,
        _bos_by_post_processor,
        _tokens_declared_in_config,
        _older_files,
        _named_in_a_dict,
        _special_tokens_split,
        _qwen2,
        _llama,
    ],
)
def test_equals_transformers(tmp_path: Path, write: Callable[[Path], None]) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in TEXTS:
        for special in (True, False):
            expected = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == expected, text
        ids = ours.encode(text)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected, text
    assert ours.special_tokens == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)


CHAT_TEMPLATES: list[tuple[dict[str, Any], dict[str, str], str | None]] = [
    ({}, {}, None),
    ({"chat_template": "in config"}, {}, "in config"),
    ({"chat_template": "in config"}, {"chat_template.jinja": "in a file"}, "in a file"),
    ({}, {"chat_template.json": '{"chat_template": "older"}'}, "older"),
    (
        {"chat_template": [{"name": n, "template": f"for {n}"} for n in ("tool_use", "default")]},
        {},
        "for default",
    ),
    ({"chat_template": [{"name": "rag", "template": "only"}]}, {}, "only"),
    ({"chat_template": [{"name": n, "template": n} for n in ("rag", "tool_use")]}, {}, None),
]


@pytest.mark.parametrize(("config", "files", "expected"), CHAT_TEMPLATES)
def test_chat_templates(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], expected: str | None
) -> None:
    _write(tmp_path, {**CONFIG, **config})
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert load_tokenizer(tmp_path).chat_template == expected


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"looked for tokenizer.json, tokenizer.model"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer.json cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not valid JSON"), ("[1]", "holds a list: expected")]
)
def test_a_damaged_config(tmp_path: Path, content: str, message: str) -> None:
    _write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=f"tokenizer_config.json {message}"):
        load_tokenizer(tmp_path)


def test_older_formats_are_converted_by_transformers(tmp_path: Path) -> None:
    model = json.loads(byte_level_backend().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    config = {
        **CONFIG,
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>",
        "chat_template": "hi",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    backend = byte_level_backend()
    assert [tokenizer.encode(t) for t in TRICKY_TEXTS] == [
        backend.encode(t).ids for t in TRICKY_TEXTS
    ]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == "hi"


def test_older_formats_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(ModelLoadError, match="transformers cannot convert its older files"):
        load_tokenizer(tmp_path)
