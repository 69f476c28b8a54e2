"""Stop strings found in a stream are those that a search of the whole text finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.front.stop import StopMatcher

LETTERS = st.text("ab<é", min_size=1, max_size=5)


def _search(text: str, stop: list[str]) -> tuple[str, str | None, str]:
    """Text before the first stop string to be completed, that string, and the text through it."""
    for end in range(1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest, text[:end]
    return text, None, text


@settings(deadline=None, max_examples=500)
@given(
    st.lists(LETTERS, min_size=1, max_size=5), st.lists(st.text("ab<é", max_size=4), max_size=20)
)
def test_equals_a_search_of_the_whole(stop: list[str], pieces: list[str]) -> None:
    before, expected, through = _search("".join(pieces), stop)
    for include in (False, True):
        matcher = StopMatcher(stop, include)
        shown = "".join([matcher.feed(piece) for piece in pieces]) + matcher.flush()
        assert matcher.matched == expected
        assert shown == (through if include else before)


@settings(deadline=None, max_examples=300)
@given(st.lists(LETTERS, min_size=1, max_size=5), st.text("ab<é", max_size=30))
def test_holds_back_no_more_than_it_must(stop: list[str], text: str) -> None:
    matcher = StopMatcher(stop)
    shown = ""
    for i, character in enumerate(text, 1):
        shown += matcher.feed(character)
        if matcher.matched is not None:
            return
        held = text[len(shown) : i]
        assert text[:i] == shown + held
        beginnings = {string[:n] for string in stop for n in range(1, len(string))}
        longest = max((n for n in range(i + 1) if text[i - n : i] in beginnings), default=0)
        assert len(held) == longest
