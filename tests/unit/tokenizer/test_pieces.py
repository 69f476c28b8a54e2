from __future__ import annotations

import pytest
from support.vocabularies import SPACE, byte_level_backend, word_backend
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.tokenizer.pieces import BytePieces, ByteRules, byte_rules

REPLACE = decoders.Replace(SPACE, " ")
REST = (decoders.ByteFallback(), decoders.Fuse())
SENTENCEPIECE = ByteRules(spelling="sentencepiece")


def _backend(*parts: object) -> Tokenizer:
    backend = Tokenizer(models.BPE({"a": 0, "\U0001f600": 1, "\u0100": 2}, []))
    if parts:
        backend.decoder = decoders.Sequence(list(parts))
    return backend


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), None),
        ((decoders.ByteLevel(),), ByteRules(spelling="byte_level")),
        ((REPLACE, *REST), SENTENCEPIECE),
        ((decoders.Sequence([REPLACE, REST[0]]), REST[1]), SENTENCEPIECE),
        (
            (REPLACE, *REST, decoders.Strip(" ", 1, 0)),
            ByteRules(spelling="sentencepiece", num_stripped_spaces=1),
        ),
        ((REPLACE, *REST, decoders.Strip(" ", 1, 1)), None),
        ((REPLACE, *REST, decoders.Strip("_", 1, 0)), None),
        ((REPLACE, *REST, decoders.Fuse()), None),
        ((decoders.Replace("_", " "), *REST), None),
        ((*REST, REPLACE), None),
        ((decoders.WordPiece(),), None),
    ],
)
def test_decoders_are_recognised(parts: tuple[object, ...], expected: ByteRules | None) -> None:
    assert byte_rules(_backend(*parts)) == expected


def test_every_byte_has_a_spelling() -> None:
    backend = byte_level_backend()
    pieces = BytePieces(backend, byte_rules(backend), {})
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found = {pieces[backend.token_to_id(character)] for character in alphabet}
    assert found == {bytes([byte]) for byte in range(256)}


def test_a_token_outside_the_byte_alphabet_is_itself() -> None:
    backend = _backend(decoders.ByteLevel())
    pieces = BytePieces(backend, byte_rules(backend), {})
    assert pieces[1] == "\U0001f600".encode()
    assert pieces[2] == b"\x00"
    assert pieces.text([1]) == backend.decode([1])


def test_an_added_token_is_itself_even_within_the_byte_alphabet() -> None:
    backend = _backend(decoders.ByteLevel())
    pieces = BytePieces(backend, byte_rules(backend), {2: "\u0100"})
    assert pieces[2] == "\u0100".encode()


def test_without_rules_the_backend_spells() -> None:
    backend = word_backend()
    assert BytePieces(backend, None, {})[1] == b"world"


def test_hidden_tokens_are_empty() -> None:
    backend = byte_level_backend()
    pieces = BytePieces(backend, byte_rules(backend), {0: "<|endoftext|>"}, hidden={0})
    assert pieces[0] == b""
    assert pieces[9] != b""
