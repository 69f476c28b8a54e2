from __future__ import annotations

import pytest
from support.vocabularies import TRICKY_TEXTS, word_backend
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.tokenizer.incremental import ByteDecoder, WindowDecoder, incremental_decoder
from octavo.tokenizer.tokenizer import Tokenizer


@pytest.fixture(params=["smollm", "byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def _pieces(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    decoder = incremental_decoder(tokenizer, prompt)
    return [*(decoder.step((i,)) for i in ids), decoder.flush()]


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_pieces_joined_are_the_text_after_the_prompt(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(f"the fox: {text}", add_special_tokens=False)
    for cut in range(len(ids) + 1):
        prompt, output = ids[:cut], ids[cut:]
        before = tokenizer.decode(prompt)
        if before.endswith("\ufffd"):  # the prompt ends inside a character
            continue
        whole = tokenizer.decode(ids)
        assert "".join(_pieces(tokenizer, prompt, output)) == whole[len(before) :]


def test_half_characters_are_held_back(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("🧭!")
    assert len(ids) > 3
    pieces = _pieces(byte_level, [], ids)
    assert "".join(pieces) == "🧭!"
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[0] == ""


def test_an_unfinished_character_ends_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("fox 😁", add_special_tokens=False)
    decoder = incremental_decoder(tokenizer)
    text = decoder.step(ids[:-1])
    assert text == "fox "
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_a_character_begun_by_the_prompt_is_completed(sentencepiece: Tokenizer) -> None:
    ids = [3 + byte for byte in "é".encode()]
    assert _pieces(sentencepiece, ids[:1], ids[1:]) == ["é", ""]
    # Nothing of it came: its replacement character belongs to the prompt's own text.
    assert _pieces(sentencepiece, ids[:1], []) == [""]
    assert _pieces(sentencepiece, ids[:1], [3 + 0x61, 3 + 0x62]) == ["a", "b", ""]


def test_sentencepiece_drops_the_first_space_of_a_text_only(sentencepiece: Tokenizer) -> None:
    fox = sentencepiece.encode("fox fox", add_special_tokens=False)
    bos = sentencepiece.bos_token_id
    assert bos is not None
    assert "".join(_pieces(sentencepiece, [], fox)) == "fox fox"
    assert "".join(_pieces(sentencepiece, [bos], fox)) == "fox fox"
    assert "".join(_pieces(sentencepiece, [bos, *fox], fox)) == " fox fox"
    kept = incremental_decoder(sentencepiece, [bos], skip_special_tokens=False)
    assert kept.step(fox) == " fox fox"


def test_special_tokens_are_left_out_or_kept(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("the<|im_end|>")
    assert incremental_decoder(byte_level).step(ids) == "the"
    assert incremental_decoder(byte_level, (), False).step(ids) == "the<|im_end|>"


def test_kinds_of_decoders(byte_level: Tokenizer) -> None:
    assert isinstance(incremental_decoder(byte_level), ByteDecoder)
    assert isinstance(incremental_decoder(Tokenizer(word_backend())), WindowDecoder)


def test_a_stripping_decoder_of_several_spaces() -> None:
    backend = Backend(models.BPE({"\u2581": 0, "a": 1}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 2, 0),
        ]
    )
    tokenizer = Tokenizer(backend)
    for ids in ([0, 0, 0, 1, 0], [0, 1, 0, 0], [1, 0], [0], [0, 0, 0]):
        assert tokenizer.decode(ids) == backend.decode(ids)
        assert "".join(_pieces(tokenizer, [], ids)) == backend.decode(ids)


class TestWindow:
    """Decoders of other kinds go through the backend."""

    def test_words_joined_by_spaces(self) -> None:
        tokenizer = Tokenizer(word_backend())
        ids = tokenizer.encode("hello world <a> again hello <b> hello world again hello hello")
        whole = tokenizer.decode(ids)
        for cut in range(len(ids) + 1):
            joined = "".join(_pieces(tokenizer, ids[:cut], ids[cut:]))
            assert joined == whole[len(tokenizer.decode(ids[:cut])) :]

    def test_spaces_between_special_tokens(self) -> None:
        tokenizer = Tokenizer(word_backend())
        ids = tokenizer.encode("hello <a> <b> <a> world <b>")
        for spaces in (True, False):
            decoder = incremental_decoder(tokenizer, (), False, spaces)
            joined = "".join([decoder.step((i,)) for i in ids]) + decoder.flush()
            assert joined == tokenizer.decode(ids, False, spaces)

    def test_half_characters_are_held_back_but_not_for_ever(self) -> None:
        backend = Backend(models.BPE({f"<0x{b:02X}>": b for b in range(256)}, []))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Strip("_", 1, 0)])
        tokenizer = Tokenizer(backend)
        assert tokenizer.rules is None
        assert _pieces(tokenizer, [], list("é!".encode())) == ["", "é", "!", ""]
        decoder = incremental_decoder(tokenizer)
        shown = [decoder.step((0xFF,)) for _ in range(100)]
        assert "\ufffd" in "".join(shown)
        assert "".join(shown) + decoder.flush() == "\ufffd" * 100
