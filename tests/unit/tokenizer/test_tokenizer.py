from __future__ import annotations

import random
import re
import threading
import time

import pytest
from support.vocabularies import SPACE, TRICKY_TEXTS, byte_level_backend, word_backend
from tokenizers import normalizers

from octavo.core.errors import InvalidParameter
from octavo.tokenizer.tokenizer import Tokenizer

KINDS = ("smollm", "byte_level", "sentencepiece")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def _comparable(tokenizer: Tokenizer, text: str) -> str:
    """In a SentencePiece vocabulary, what follows a special token gets an extra space."""
    return re.sub("s> +", "s>", text) if tokenizer.bos_token == "<s>" else text


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    assert _comparable(tokenizer, decoded) == _comparable(tokenizer, text)


def test_batches_equal_single_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(TRICKY_TEXTS) == [tokenizer.encode(t) for t in TRICKY_TEXTS]
    backend = tokenizer.backend
    assert tokenizer.encode_batch(TRICKY_TEXTS) == [backend.encode(t).ids for t in TRICKY_TEXTS]


def test_other_threads_run_while_a_long_text_is_encoded(smollm: Tokenizer) -> None:
    text = "hello " * 300_000
    thread = threading.Thread(target=smollm.encode, args=(text,))
    began = before = time.monotonic()
    longest_pause = 0.0
    thread.start()
    while True:
        now = time.monotonic()
        longest_pause = max(longest_pause, now - before)
        before = now
        if not thread.is_alive():
            break
        time.sleep(0.001)
    assert longest_pause < (now - began) / 2


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_token_bytes_joined_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(tokenizer.token_bytes(i) for i in ids).decode()
    if tokenizer.bos_token == "<s>":
        joined = joined.removeprefix(" ")
    assert _comparable(tokenizer, joined) == _comparable(tokenizer, text)


@pytest.mark.parametrize("text", ["the fox", " the", "é 世界 fox", "<s> the", "e\u0301 fox"])
def test_offsets_are_where_tokens_begin(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    offsets = tokenizer.offsets(text)
    assert len(offsets) == len(ids)
    assert offsets == sorted(offsets)
    assert offsets[0] == 0 and offsets[-1] < len(text)
    ends = [*offsets[1:], len(text)]
    for token, begin, end in zip(ids, offsets, ends, strict=True):
        spelled = tokenizer.token_bytes(token).decode("utf-8", "ignore").strip()
        if spelled in text and begin < end:
            assert text[begin:].lstrip().startswith(spelled) or spelled == "<s>"


def test_offsets_count_characters_of_the_text_before_it_is_normalised() -> None:
    backend = byte_level_backend()
    backend.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(backend)
    text = "e\u0301 fox"  # the tokens spell one character less
    spelled = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
    assert b"".join(spelled).decode() == "é fox"
    assert tokenizer.offsets(text)[spelled.index(b" fox")] == 2


def test_token_bytes_of_single_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    emoji = byte_level.encode("😀")
    assert len(emoji) > 1
    assert b"".join(byte_level.token_bytes(i) for i in emoji) == "😀".encode()
    assert byte_level.token_bytes(1) == b"<|im_start|>"
    assert sentencepiece.token_bytes(3 + 0xE2) == b"\xe2"
    the = sentencepiece.backend.token_to_id(f"{SPACE}the")
    assert sentencepiece.token_bytes(the) == b" the"


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    outside = (-1, tokenizer.vocab_size, 2**31)
    assert [tokenizer.token_bytes(i) for i in outside] == [b"", b"", b""]
    ids = tokenizer.encode("the fox", add_special_tokens=False)
    assert tokenizer.decode([outside[0], *ids, *outside[1:]]) == "the fox"


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_random_ids_equals_the_backend(byte_level: Tokenizer, skip: bool) -> None:
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(byte_level.vocab_size) for _ in range(rng.randrange(12))]
        expected = byte_level.backend.decode(ids, skip_special_tokens=skip)
        assert byte_level.decode(ids, skip_special_tokens=skip) == expected


def test_decoding_byte_fallback_equals_the_backend_for_whole_characters(
    sentencepiece: Tokenizer,
) -> None:
    for text in ("😀😁", " the 世界 fox", "  two"):
        ids = sentencepiece.encode(text)
        assert sentencepiece.decode(ids) == sentencepiece.backend.decode(ids) == text


def test_bytes_that_are_no_character_become_one_replacement_each(sentencepiece: Tokenizer) -> None:
    a, half, wrong = 3 + 0x61, 3 + 0xE2, 3 + 0xFF
    assert sentencepiece.decode([a, half, a, wrong, wrong, a]) == "a\ufffda\ufffd\ufffda"


def test_special_tokens_are_left_out_or_kept(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>the fox<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert byte_level.decode(ids) == "the fox"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>the fox<|im_end|>"


def test_names_and_sizes(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == byte_level_backend().get_vocab_size()
    assert byte_level.all_special_ids == {0, 1, 2}
    assert (byte_level.bos_token, byte_level.bos_token_id) == ("<|im_start|>", 1)
    assert (byte_level.eos_token, byte_level.eos_token_id) == ("<|im_end|>", 2)
    bare = Tokenizer(byte_level_backend())
    assert bare.bos_token is bare.eos_token is bare.bos_token_id is bare.eos_token_id is None
    assert bare.chat_template is None


def test_spaces_between_special_tokens() -> None:
    tokenizer = Tokenizer(word_backend())
    ids = tokenizer.encode("hello <a> <b> world")
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hello <a> <b> world"
    without = tokenizer.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert without == "hello <a><b> world"
    assert tokenizer.decode(ids) == "hello world"
    assert tokenizer.token_bytes(0) == b"hello"


@pytest.mark.parametrize(("text", "where"), [("\ud800", 0), ("ab\udfffc", 2)])
def test_lone_surrogates_are_refused(byte_level: Tokenizer, text: str, where: int) -> None:
    code = f"U\\+{ord(text[where]):04X} at character {where}"
    with pytest.raises(InvalidParameter, match=code):
        byte_level.encode(text)
    with pytest.raises(InvalidParameter, match=code):
        byte_level.encode_batch(["fine", text])


def test_text_of_another_type_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidParameter, match="int: use a string"):
        byte_level.encode_batch(["fine", 3])  # type: ignore[list-item]


def test_truncation_and_padding_of_the_files_are_off() -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    assert len(Tokenizer(backend).encode("the quick brown fox")) not in (2, 64)


def test_a_mistake_of_the_caller_is_not_blamed_on_the_text(byte_level: Tokenizer) -> None:
    with pytest.raises(TypeError):
        byte_level.encode("fine", add_special_tokens="no")  # type: ignore[arg-type]
