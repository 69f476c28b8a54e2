"""Suffix matching finds the longest match in one's own text and in earlier answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.speculate.suffix import SuffixProposer

TEXTS = st.lists(st.integers(0, 2), min_size=3, max_size=40)


def proposer(**options: Any) -> SuffixProposer:
    defaults = {"max_depth": 24, "max_requests": 100, "factor": 8.0, "min_probability": 0.0}
    return SuffixProposer(**{**defaults, **options})


def request(
    name: str, prompt: Sequence[int], output: Sequence[int] = (), *, salt: str = ""
) -> Request:
    made = Request(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(),
        seed=0,
        cache_salt=salt,
    )
    made.output_token_ids += output
    return made


def finish(made: SuffixProposer, name: str, output: Sequence[int], *, salt: str = "") -> None:
    ended = request(name, [99], salt=salt)
    made.propose(ended, 1)
    ended.output_token_ids += output
    made.forget(name)


def test_earlier_answers_of_the_tenant_count() -> None:
    made = proposer()
    finish(made, "first", [1, 2, 3, 4, 5, 6])
    assert made.propose(request("a", [9, 2, 3, 4]), 8) == (5, 6)
    assert made.propose(request("b", [9, 2, 3, 4], salt="other"), 8) == ()
    finish(made, "second", [1, 2, 3, 4, 7], salt="other")
    assert made.propose(request("c", [9, 2, 3, 4], salt="other"), 8) == (7,)
    assert made.propose(request("d", [9, 2, 3, 4]), 8) == (5, 6)


def test_the_longer_match_wins_and_of_equals_the_more_frequent() -> None:
    made = proposer()
    for name, output in (("a", [1, 2, 3, 7]), ("b", [1, 2, 3, 7]), ("c", [1, 2, 3, 8])):
        finish(made, name, output)
    assert made.propose(request("x", [1, 2, 3]), 1) == (7,)
    finish(made, "d", [5, 1, 2, 3, 9])
    assert made.propose(request("y", [5, 1, 2, 3]), 1) == (9,)


def test_a_draft_grows_with_its_match() -> None:
    made = proposer(factor=1.0)
    finish(made, "a", [*range(20)])
    assert made.propose(request("x", [50, 0, 1, 2]), 8) == (3, 4, 5)
    assert made.propose(request("y", [50, 0, 1, 2, 3, 4]), 8) == (5, 6, 7, 8, 9)


def test_a_draft_ends_where_it_becomes_unlikely() -> None:
    made = proposer(min_probability=0.6)
    finish(made, "a", [1, 2, 3, 4, 5, 6])
    finish(made, "b", [1, 2, 3, 4, 7, 8])
    assert made.propose(request("x", [1, 2, 3]), 8) == (4,)


def test_old_answers_are_forgotten() -> None:
    made = proposer(max_requests=2)
    finish(made, "a", [1, 2, 3, 4, 5])
    finish(made, "b", [6, 7, 8, 9, 10])
    assert made.propose(request("x", [1, 2, 3]), 8) == (4, 5)
    finish(made, "c", [11, 12, 13, 14])
    assert made.propose(request("y", [1, 2, 3]), 8) == ()
    assert made.propose(request("z", [6, 7, 8]), 8) == (9, 10)
    none = proposer(max_requests=0)
    finish(none, "a", [1, 2, 3, 4, 5])
    assert none.propose(request("x", [1, 2, 3]), 8) == ()


def longest_match(tokens: list[int], places: list[tuple[list[int], int]]) -> int:
    """By brute force: how many last tokens stand before one of these places."""
    best = 0
    for text, end in places:
        length = 0
        while length < min(end, len(tokens)) and text[end - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@given(TEXTS, TEXTS, st.lists(st.integers(1, 5), max_size=6))
def test_what_is_proposed_followed_a_longest_match(
    past: list[int], tokens: list[int], cuts: list[int]
) -> None:
    """However a request grew; with few enough places for all of them to be looked at."""
    made = proposer(max_depth=1000)
    finish(made, "past", past)
    own = request("own", tokens[:3])
    at = 3
    for cut in [*cuts, len(tokens)]:
        made.propose(own, 1)
        own.output_token_ids += tokens[at : at + cut]
        at = min(at + cut, len(tokens))
    draft = made.propose(own, 1)
    places = [(past, end) for end in range(1, len(past))] if len(past) > 3 else []
    places += [(tokens, end) for end in range(1, len(tokens))]
    best = longest_match(tokens, places)
    assert bool(draft) == (best >= 3)
    if draft and len(places) < 16:
        followers = {
            text[end] for text, end in places if longest_match(tokens, [(text, end)]) == best
        }
        assert draft[0] in followers


def test_requests_do_not_see_what_others_are_writing() -> None:
    made = proposer()
    made.propose(request("a", [1, 2, 3, 4, 5]), 1)
    assert made.propose(request("b", [1, 2, 3]), 4) == ()
