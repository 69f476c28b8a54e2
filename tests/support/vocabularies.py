"""Small tokenizers of every kind that Octavo reads, and texts that are hard to tokenize."""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPACE = "\u2581"

TRICKY_TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "runs   of    spaces\t\ttabs\n\nlines\r\n \n ",
    "emoji 😀👍🏽👩‍👩‍👧‍👦🇩🇪 done",
    "世界你好,日本語テキスト 한국어",
    "e\u0301 a\u0308 n\u0303 combining, é ä ñ composed",
    "नमस्ते दुनिया שלום مرحبا ไทย",
    "digits 2024 3.14159 1,000,000 ½ ² ٣٤",
    "it's we'll I'M DON'T",
    "<|im_start|>user\nspelled out<|im_end|><|endoftext|>",
    "half <|im_start and > more <s> </s> <0x41>",
    "null \x00 bell \x07 nbsp\u00a0zwsp\u200b bom\ufeff replacement \ufffd",
    "a" * 300,
    "\U0010ffff \ud7ff \ue000",
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other one, it's 2024",
    "  sixteen tokens in a block,\n\n one block in a table, one table in a request",
    "page after page, the cache is read and written; we'll see: 3.14159 < 1,000",
    "emoji 😀 世界 é ñ",
)


@functools.cache
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    return tokenizer.to_str()


def byte_level_backend() -> Tokenizer:
    """GPT-2's kind of tokenizer: some 380 tokens, the first three special."""
    return Tokenizer.from_str(_byte_level_json())


def byte_level_metadata(pre: str | None = "gpt-2", **keys: Any) -> dict[str, Any]:
    """The same vocabulary as the metadata of a GGUF file; ``keys`` go below tokenizer.ggml."""
    model = json.loads(_byte_level_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    values: dict[str, Any] = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [3 if token in SPECIAL_TOKENS else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if pre is not None:
        values["pre"] = pre
    return _metadata(values | keys)


@functools.cache
def _sentencepiece_model() -> dict[str, Any]:
    """Vocabulary and merges of a SentencePiece-like BPE: specials, 256 bytes, characters, words."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        max_token_length=12,
    )
    words = [SPACE + word for text in _CORPUS * 3 for word in text.split() if word.isascii()]
    tokenizer.train_from_iterator(words, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def sentencepiece_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens with their ids, and merges, as `tokenizers` wants them."""
    model = _sentencepiece_model()
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def sentencepiece_metadata(**keys: Any) -> dict[str, Any]:
    """The metadata of a GGUF file with a SentencePiece vocabulary: scores instead of merges."""
    vocabulary, _ = sentencepiece_vocabulary()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [0.0 if kind != 1 else float(-i) for i, kind in enumerate(types)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _metadata(values | keys)


def word_backend() -> Tokenizer:
    """Whole words and no decoder: tokens are joined by spaces. The last two are special."""
    words = ["hello", "world", "again", "<a>", "<b>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "hello"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[-2:]])
    return tokenizer


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}
