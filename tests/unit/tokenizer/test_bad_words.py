from __future__ import annotations

import pytest
from support.vocabularies import word_backend

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.tokenizer.bad_words import with_bad_words
from octavo.tokenizer.tokenizer import Tokenizer


def test_each_word_with_and_without_a_space_before(byte_level: Tokenizer) -> None:
    params = with_bad_words(SamplingParams(bad_words=("fox", " the")), byte_level)
    expected = [tuple(byte_level.encode(text)) for text in ("fox", " fox", "the", " the")]
    assert list(params.bad_words_token_ids) == expected
    assert params.bad_words == ("fox", " the")


def test_what_was_there_stays_and_nothing_comes_twice(byte_level: Tokenizer) -> None:
    params = SamplingParams(bad_words=("fox", "fox"), bad_words_token_ids=((5, 6),))
    found = with_bad_words(params, byte_level).bad_words_token_ids
    assert found[0] == (5, 6)
    assert len(found) == 3
    again = with_bad_words(with_bad_words(params, byte_level), byte_level)
    assert again.bad_words_token_ids == found


def test_no_beginning_of_sequence_slips_in(sentencepiece: Tokenizer) -> None:
    params = with_bad_words(SamplingParams(bad_words=("fox",)), sentencepiece)
    assert all(1 not in ids for ids in params.bad_words_token_ids)


def test_without_bad_words_nothing_changes(byte_level: Tokenizer) -> None:
    params = SamplingParams()
    assert with_bad_words(params, byte_level) is params


def test_a_space_alone_is_a_word(byte_level: Tokenizer) -> None:
    params = with_bad_words(SamplingParams(bad_words=(" ",)), byte_level)
    assert tuple(byte_level.encode(" ")) in params.bad_words_token_ids


def test_a_lone_surrogate_is_named(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidParameter, match=r"bad_words: .*U\+D800") as caught:
        with_bad_words(SamplingParams(bad_words=("\ud800",)), byte_level)
    assert caught.value.param == "bad_words"


def test_a_word_without_tokens_is_named() -> None:
    tokenizer = Tokenizer(word_backend())
    with pytest.raises(InvalidParameter, match=r"holds ' ', which .* no tokens for") as caught:
        with_bad_words(SamplingParams(bad_words=(" ",)), tokenizer)
    assert caught.value.param == "bad_words"
