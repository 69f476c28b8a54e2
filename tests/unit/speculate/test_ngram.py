"""Prompt lookup finds what a search of the whole text would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.speculate.ngram import NgramIndex, NgramProposer

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def search(tokens: list[int], shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """The same by brute force."""
    size = len(tokens)
    for length in range(longest, shortest - 1, -1):
        if length >= size:
            continue
        for end in range(size - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[size - length :]:
                text = list(tokens)
                while len(text) < end + count:  # what comes after the end repeats the guess
                    text.append(text[len(text) - (size - end)])
                return tuple(text[end : end + count])
    return ()


@given(TEXTS, st.integers(1, 3), st.integers(0, 3), st.integers(1, 8))
def test_the_latest_longest_run_counts(
    tokens: list[int], shortest: int, more: int, count: int
) -> None:
    index = NgramIndex(tokens, shortest=shortest, longest=shortest + more)
    assert index.propose(count) == search(tokens, shortest, shortest + more, count)


@given(TEXTS, st.lists(st.integers(1, 7), max_size=10))
def test_growing_is_the_same_as_starting_again(tokens: list[int], cuts: list[int]) -> None:
    index = NgramIndex([], shortest=1, longest=3)
    at = 0
    for cut in [*cuts, len(tokens)]:
        index.extend(tokens[at : at + cut])
        at += cut
        known = tokens[:at]
        assert index.propose(4) == NgramIndex(known, shortest=1, longest=3).propose(4)


def test_requests_do_not_see_each_other() -> None:
    proposer = NgramProposer(shortest=1, longest=2)

    def request(name: str, prompt: tuple[int, ...]) -> Request:
        params = SamplingParams()
        return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=0)

    first, second = request("a", (1, 2, 3, 1, 2)), request("b", (7, 8, 1, 2))
    assert proposer.propose(first, 2) == (3, 1)
    assert proposer.propose(second, 2) == ()
    first.output_token_ids += [3, 7]
    assert proposer.propose(first, 3) == ()
    first.output_token_ids += [1]
    assert proposer.propose(first, 3) == (2, 3, 7)
    proposer.forget("a")
    proposer.forget("a")
    assert proposer.propose(request("a", (5, 6)), 2) == ()
