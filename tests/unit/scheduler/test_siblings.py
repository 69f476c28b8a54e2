from __future__ import annotations

import pytest

from octavo.core.params import MAX_SEED, SamplingParams
from octavo.core.request import Request
from octavo.scheduler.siblings import Siblings


def request(name="a", seed=7, **params):
    return Request(
        request_id=name,
        prompt_token_ids=(1, 2, 3),
        params=SamplingParams(**params),
        seed=seed,
        priority=3,
        arrival_s=4.0,
        cache_salt="x",
        eos_token_ids=frozenset({9}),
    )


def test_siblings_are_the_same_but_for_name_seed_and_prompt_logprobs():
    made = Siblings().make(request(n=3, prompt_logprobs=2))
    assert [(r.request_id, r.seed) for r in made] == [("a#1", 8), ("a#2", 9)]
    for r in made:
        assert r.params.prompt_logprobs is None and r.prompt_token_ids == (1, 2, 3)
        assert (r.priority, r.arrival_s, r.cache_salt) == (3, 4.0, "x")
        assert r.eos_token_ids == {9}


@pytest.mark.parametrize(
    ("seed", "expected"), [(0, 1), (MAX_SEED - 1, MAX_SEED), (MAX_SEED, 0), (-1, 0)]
)
def test_seeds_wrap_at_the_largest(seed, expected):
    (made,) = Siblings().make(request(seed=seed, n=2))
    assert made.seed == expected


def test_one_completion_has_no_siblings():
    siblings = Siblings()
    assert siblings.make(request()) == [] and siblings.let_go("a") == []
    assert siblings.first_of("a") is None and not siblings.forget(request())


def test_held_until_let_go_or_forgotten():
    siblings = Siblings()
    first = request(n=4)
    one, two, three = siblings.make(first)
    assert siblings.held_ids() == ["a#1", "a#2", "a#3"]
    assert siblings.forget(two) and siblings.held_ids() == ["a#1", "a#3"]
    assert siblings.let_go("a") == [one, three] and siblings.let_go("a") == []
    assert siblings.first_of("a#1") == "a" and siblings.first_of("a#2") is None
    assert not siblings.forget(one) and siblings.first_of("a#1") is None
