from __future__ import annotations

import pytest

from octavo.front.stop import StopMatcher


def _feed(matcher: StopMatcher, *pieces: str) -> list[str]:
    return [matcher.feed(piece) for piece in pieces]


@pytest.mark.parametrize(("include", "last"), [(False, " there"), (True, " there STOP")])
def test_text_is_cut_at_the_stop_string(include: bool, last: str) -> None:
    matcher = StopMatcher([" STOP"], include)
    assert _feed(matcher, "hello", " there STOP and more") == ["hello", last]
    assert matcher.matched == " STOP"
    assert _feed(matcher, "later") == [""]
    assert matcher.flush() == ""


def test_a_stop_string_across_pieces() -> None:
    matcher = StopMatcher(["<end>"])
    assert _feed(matcher, "a<", "en", "d", "> b") == ["a", "", "", ""]
    assert matcher.matched == "<end>"


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["<end>", "ab"])
    assert _feed(matcher, "x<e", "x", "a", "a", "a", "c") == ["x", "<ex", "", "a", "a", "ac"]
    assert matcher.matched is None


def test_what_is_held_back_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["<end>"])
    assert matcher.feed("x<en") == "x"
    assert matcher.flush() == "<en"
    assert matcher.flush() == ""


def test_the_first_to_be_completed_wins() -> None:
    matcher = StopMatcher(["abcd", "bc", "c"])
    assert matcher.feed("xabcd") == "xa"
    assert matcher.matched == "bc"


def test_of_two_that_end_together_the_longer_wins() -> None:
    matcher = StopMatcher(["c", "abc"])
    assert matcher.feed("xabc") == "x"
    assert matcher.matched == "abc"


def test_overlapping_beginnings() -> None:
    matcher = StopMatcher(["aab"])
    assert _feed(matcher, "a", "a", "a", "b") == ["", "", "a", ""]
    assert matcher.matched == "aab"
    assert StopMatcher(["aab"]).feed("aaab") == "a"
