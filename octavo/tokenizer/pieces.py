"""The bytes behind each token, by the two spellings that generative models use.

Byte-level BPE (GPT-2 and its heirs) spells every byte as one printable character; SentencePiece
spells a space as U+2581 and a stray byte as ``<0xNN>``. Both are recognised by the tokenizer's
decoder. For any other decoder there are no rules, and text must go through the backend.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer as Backend

from octavo.core.types import TokenId

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRules:
    """How a vocabulary spells bytes, and how many leading spaces its decoder takes off a text."""

    spelling: Literal["byte_level", "sentencepiece"]
    num_stripped_spaces: int = 0


def byte_rules(backend: Backend) -> ByteRules | None:
    """The rules of a tokenizer, read off its decoder; None if it is of neither kind."""
    if backend.decoder is None:
        return None
    decoders = _flat(json.loads(backend.decoder.__getstate__()))
    kinds = [decoder["type"] for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return ByteRules(spelling="byte_level")
    replace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or decoders[0] != replace:
        return None
    if len(decoders) == 3:
        return ByteRules(spelling="sentencepiece")
    strip = decoders[3]
    if kinds[3:] != ["Strip"] or strip["content"] != " " or strip["stop"] != 0:
        return None
    return ByteRules(spelling="sentencepiece", num_stripped_spaces=strip["start"])


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flat(inner)]


class BytePieces(dict[TokenId, bytes]):
    """Token id to bytes, filled on first use. ``hidden`` tokens, and ids outside the vocabulary,
    are empty."""

    def __init__(
        self,
        backend: Backend,
        rules: ByteRules | None,
        added_tokens: Mapping[TokenId, str],
        *,
        hidden: Collection[TokenId] = frozenset(),
    ) -> None:
        super().__init__()
        self._backend = backend
        self._rules = rules
        self._added = added_tokens
        self._hidden = hidden
        self.num_stripped_spaces = 0 if rules is None else rules.num_stripped_spaces

    def text(self, ids: Sequence[TokenId]) -> str:
        """Text of a whole sequence."""
        text = b"".join([self[i] for i in ids]).decode("utf-8", "replace")
        for _ in range(self.num_stripped_spaces):
            text = text.removeprefix(" ")
        return text

    def __missing__(self, token_id: TokenId) -> bytes:
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        piece = b"" if token_id in self._hidden else self._spell(token_id, token)
        self[token_id] = piece
        return piece

    def _spell(self, token_id: TokenId, token: str) -> bytes:
        if self._rules is None:
            return self._backend.decode([token_id], skip_special_tokens=False).encode()
        if self._rules.spelling == "sentencepiece":
            byte = _BYTE_TOKEN.fullmatch(token)
            if byte:
                return bytes([int(byte[1], 16)])
            return token.replace(_SPACE, " ").encode()
        if token_id in self._added:
            return token.encode()
        try:
            return bytes([_BYTE_OF[character] for character in token])
        except KeyError:
            return token.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling: printable Latin-1 stands for itself, the other bytes, in order, for the
    characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_level_alphabet()
