from __future__ import annotations

import pytest
from llguidance import LLTokenizer

from octavo.core.params import Structured
from octavo.grammar.matcher import Matcher
from octavo.grammar.store import compiled
from octavo.tokenizer.tokenizer import Tokenizer

EOS = 2


@pytest.fixture
def matcher(vocabulary: LLTokenizer) -> Matcher:
    return Matcher(compiled(Structured.regex("ab+c?"), vocabulary), vocabulary.vocab_size)


@pytest.fixture(scope="session")
def ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {text: tokenizer.encode(text, add_special_tokens=False)[0] for text in "abcx"}


def test_an_output_is_followed_to_its_end(matcher: Matcher, ids: dict[str, int]) -> None:
    states = []
    for char in "abbc":
        matcher.consume([ids[char]])
        states.append((matcher.is_accepting, matcher.is_complete))
    assert states == [(False, False), (True, False), (True, False), (True, True)]
    assert matcher.error is None


def test_the_end_of_the_sequence_completes_it(matcher: Matcher, ids: dict[str, int]) -> None:
    matcher.consume([ids["a"], ids["b"], EOS])
    assert matcher.is_complete and matcher.error is None


@pytest.mark.parametrize("wrong", [["x"], ["a", "c"], ["a", EOS]])
def test_what_is_not_allowed_is_an_error_for_good(
    matcher: Matcher, ids: dict[str, int], wrong: list[str | int]
) -> None:
    matcher.consume([ids.get(token, EOS) for token in wrong])  # type: ignore[call-overload]
    error = matcher.error
    assert error and "\n" not in error
    assert not matcher.is_accepting and not matcher.is_complete
    matcher.consume([ids["a"]])
    matcher.rollback(1)
    assert matcher.error == error and matcher.validate([ids["a"]]) == 0


def test_drafts_are_tried_and_taken_back(matcher: Matcher, ids: dict[str, int]) -> None:
    a, b, c, x = (ids[char] for char in "abcx")
    assert [matcher.validate(draft) for draft in ([], [a, b, b], [a, x, b], [x])] == [0, 3, 1, 0]
    assert matcher.validate([a, b, EOS, b]) == 3
    matcher.consume([a, b, c])
    assert matcher.is_complete
    matcher.rollback(2)
    assert not matcher.is_complete and not matcher.is_accepting
    matcher.consume([b])
    assert matcher.is_accepting
    matcher.consume([EOS])
    matcher.rollback(1)
    assert matcher.is_accepting and not matcher.is_complete
    matcher.consume([c])
    assert matcher.is_complete and matcher.error is None


def test_more_than_there_is_cannot_be_taken_back(matcher: Matcher, ids: dict[str, int]) -> None:
    matcher.consume([ids["a"]])
    matcher.rollback(2)
    assert matcher.error and "rollback" in matcher.error


def test_a_fault_of_ours_stays_the_first(matcher: Matcher) -> None:
    matcher.fail("first")
    matcher.fail("second")
    assert matcher.error == "first" and not matcher.is_complete


def test_masks_have_a_bit_for_each_token_of_the_model(vocabulary: LLTokenizer) -> None:
    matcher = Matcher(compiled(Structured.regex("a"), vocabulary), vocabulary.vocab_size)
    assert vocabulary.vocab_size == 500 and matcher.mask_bytes == 64
