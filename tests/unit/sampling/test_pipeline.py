"""Logits to tokens, against small and obvious references."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.sampling import draw as drawing
from octavo.sampling.logprobs import prompt_logprobs
from octavo.sampling.pipeline import sample
from octavo.sampling.state import RequestSampling
from octavo.sampling.uniform import uniforms

VOCAB = 40
EOS = 7


def state(*, seed=0, output=(), prompt=(1, 2), vocab=VOCAB, **params):
    return RequestSampling(
        SamplingParams(**{"max_tokens": None, **params}),
        seed=seed,
        eos_token_ids=frozenset({EOS}),
        prompt_token_ids=list(prompt),
        output_token_ids=list(output),
        vocab_size=vocab,
    )


def logits_of(seed, rows=1, vocab=VOCAB, scale=2.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def token(logits, **params):
    (sampled,) = sample(logits, [state(**params)])
    assert sampled.error is None
    return sampled.token_id


def kept_tokens(logits, *, top_k=0, top_p=1.0, min_p=0.0, temperature=1.0):
    """The tokens that may be drawn, straight from the definitions."""
    p = np.exp(logits.double().numpy() / temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if top_k:
        order = order[:top_k]
    mass = sum(p[i] for i in order)
    kept, total = [], 0.0
    for i in order:
        if total >= top_p * mass:
            break
        kept.append(i)
        total += p[i]
    return [i for i in kept if p[i] >= min_p * p[order[0]]], p


@pytest.mark.parametrize("depths", [(4,), (2, 9), drawing.DEPTHS])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.05, 0.3, 0.7, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_only_tokens_within_every_cut_are_drawn(depths, seed, top_k, top_p, min_p, temperature):
    logits = logits_of(seed)[0]
    kept, _ = kept_tokens(
        logits, top_k=min(top_k, VOCAB), top_p=top_p, min_p=min_p, temperature=temperature
    )
    states = [
        state(seed=i, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
        for i in range(64)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing._draw_cut, "__defaults__", (depths,))
        drawn = {s.token_id for s in sample(logits.expand(64, -1), states)}
    assert drawn <= set(kept)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 12, "top_p": 0.9, "temperature": 1.5},
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_distribution(params):
    logits = logits_of(3, scale=1.0)[0]
    kept, p = kept_tokens(logits, **params)
    count = 20_000
    positions = range(count)
    states = [state(seed=5, output=(), **params) for _ in positions]
    for position, one in zip(positions, states, strict=True):
        one.output_token_ids = range(position)  # only its length counts here
    drawn = [s.token_id for s in sample(logits.expand(count, -1), states)]
    expected = {i: p[i] / sum(p[j] for j in kept) * count for i in kept}
    assert set(drawn) <= set(kept)
    big = [i for i in kept if expected[i] >= 5]
    chi = sum((drawn.count(i) - expected[i]) ** 2 / expected[i] for i in big)
    # Mean len(big), variance 2 len(big): six standard deviations.
    assert chi < len(big) + 6 * math.sqrt(2 * len(big))


def test_rows_do_not_depend_on_their_company():
    rng = random.Random(0)
    kinds = [
        {"temperature": 0},
        {},
        {"top_p": 0.9},
        {"top_k": 3, "temperature": 0.6},
        {"min_p": 0.05},
        {"frequency_penalty": 1.0, "repetition_penalty": 1.3},
        {"logit_bias": {3: 5.0}},
        {"allowed_token_ids": [1, 2, 3]},
        {"bad_words_token_ids": ((4,), (5, 6))},
        {"min_tokens": 20, "logprobs": 4},
    ]
    rows = 64
    logits = logits_of(1, rows=rows, vocab=5000)

    def make(row):
        rng = random.Random(row)
        output = [rng.randrange(VOCAB) for _ in range(row % 9)]
        return state(
            seed=row, output=output, vocab=5000, **{"logprobs": 2, **kinds[row % len(kinds)]}
        )

    alone = [sample(logits[row : row + 1], [make(row)])[0] for row in range(rows)]
    order = rng.sample(range(rows), rows)
    together = sample(logits[order], [make(row) for row in order])
    for row, found in zip(order, together, strict=True):
        assert found == alone[row]


def test_greedy_takes_the_lowest_of_equals_and_ignores_seeds():
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 9]] = 3.0
    assert {token(logits, temperature=0, seed=s) for s in range(5)} == {5}
    assert token(logits, temperature=1e-6, seed=3) == 5


def test_logits_are_not_changed():
    logits = logits_of(0)
    before = logits.clone()
    token(logits, temperature=0.5, top_k=3, frequency_penalty=1.0, output=[1], logit_bias={1: 2.0})
    assert torch.equal(logits, before)


def test_penalties():
    logits = torch.zeros(1, VOCAB)
    logits[0, 1], logits[0, 2], logits[0, 3], logits[0, 4] = 2.0, 1.9, -1.0, 1.0
    assert token(logits, temperature=0, repetition_penalty=1.1, prompt=[1]) == 2  # 2 / 1.1 < 1.9
    assert token(logits, temperature=0, repetition_penalty=1.1, prompt=[], output=[1]) == 2
    assert token(logits, temperature=0, frequency_penalty=0.5, output=[1, 1], prompt=[2]) == 2
    assert token(logits, temperature=0, frequency_penalty=0.04, output=[1, 1]) == 1
    assert token(logits, temperature=0, presence_penalty=0.2, output=[1]) == 2
    assert token(logits, temperature=0, presence_penalty=0.2, output=[], prompt=[1]) == 1
    low = torch.full((1, VOCAB), -9.0)
    low[0, 3], low[0, 4] = -1.0, -1.05
    assert token(low, temperature=0, repetition_penalty=1.1, prompt=[3]) == 4  # -1.1 < -1.05


def test_state_counts_as_tokens_come():
    grown = state(frequency_penalty=1.0, repetition_penalty=1.2)
    for value in (5, 5, 6):
        _ = grown.counts, grown.seen
        grown.append(value)
    whole = state(output=[5, 5, 6], frequency_penalty=1.0)
    assert torch.equal(grown.counts, whole.counts) and torch.equal(grown.seen, whole.seen)
    assert grown.position == 3


def test_bias_allowed_and_bad_words():
    logits = torch.zeros(1, VOCAB)
    logits[0, 4] = 5.0
    assert token(logits, temperature=0, logit_bias={9: 5.5}) == 9
    assert token(logits, temperature=0, logit_bias={4: -100.0}) == 0
    assert token(logits, temperature=0, allowed_token_ids=[8, 6]) == 6
    assert token(logits, temperature=0, bad_words_token_ids=((4,),)) == 0
    pair = ((3, 4),)
    assert token(logits, temperature=0, bad_words_token_ids=pair, output=[3]) == 0
    assert token(logits, temperature=0, bad_words_token_ids=pair, output=[3, 2]) == 4
    assert token(logits, temperature=0, bad_words_token_ids=pair, prompt=[3], output=[]) == 4


def test_min_tokens_holds_back_what_would_end():
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 9], logits[0, 11] = 9.0, 8.0, 7.0
    early = {"temperature": 0, "min_tokens": 2, "stop_token_ids": [9]}
    assert token(logits, **early, output=[1]) == 11
    assert token(logits, **early, output=[1, 1]) == EOS
    assert token(logits, temperature=0, min_tokens=2, ignore_eos=True) == EOS


def test_a_hopeless_row_fails_alone():
    logits = logits_of(0, rows=4)
    logits[1] = math.nan
    states = [
        state(temperature=0),
        state(),
        state(allowed_token_ids=[3], bad_words_token_ids=((3,),)),
        state(top_k=3),
    ]
    found = sample(logits, states)
    assert [s.error is None for s in found] == [True, False, False, True]
    assert "not finite" in found[1].error and "rule out every one" in found[2].error


def test_logprobs_are_of_the_raw_logits():
    logits = logits_of(2)
    expected = torch.log_softmax(logits[0].double(), -1)
    (found,) = sample(logits, [state(temperature=0, logit_bias={5: 100.0}, logprobs=3)])
    order = sorted(range(VOCAB), key=lambda i: -logits[0, i].item())
    assert found.token_id == found.logprobs.token_id == 5
    assert found.logprobs.rank == order.index(5) + 1
    assert found.logprobs.logprob == pytest.approx(expected[5].item(), abs=1e-5)
    assert [i for i, _ in found.logprobs.top] == order[:3]
    entries = prompt_logprobs(logits_of(4, rows=3), [1, 2, 3], 0)
    assert [entry.token_id for entry in entries] == [1, 2, 3] and entries[0].top == ()


def test_equal_alternatives_come_by_id():
    logits = torch.zeros(1, VOCAB)
    (found,) = sample(logits, [state(temperature=0, logprobs=5)])
    assert [i for i, _ in found.logprobs.top] == [0, 1, 2, 3, 4] and found.logprobs.rank == 1


def test_uniforms_are_uniform_and_unrelated():
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64))
    values = uniforms(seeds, positions)
    assert values.min() >= 0 and values.max() < 1
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < 19 + 6 * math.sqrt(38)
    for a, b in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
    assert len(np.unique(values)) == values.size


def test_extreme_shares_stay_inside():
    weights = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    picks = [
        drawing._pick(weights, torch.tensor([u], dtype=torch.float64))[0]
        for u in (0.0, 0.5, 1 - 2**-53)
    ]
    assert picks == [1, 2, 2]


class FakeMatcher:
    """The part of a matcher that sampling looks at."""

    def __init__(self, *, error=None, accepting=False):
        self.error, self.is_accepting = error, accepting


def constrained(allowed, *, matcher=None, **params):
    """A state whose grammar allows these tokens next."""
    one = state(**params)
    one.matcher = matcher or FakeMatcher()
    bits = np.zeros(64, np.uint8)
    bits[list(allowed)] = 1
    one.mask = np.packbits(bits, bitorder="little")
    return one


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_only_what_the_grammar_allows_is_sampled(temperature):
    logits = logits_of(0, rows=64)
    rng = random.Random(0)
    sets = [rng.sample(range(VOCAB), 1 + row % 9) for row in range(64)]
    states = [constrained(sets[row], seed=row, temperature=temperature) for row in range(64)]
    found = sample(logits, states)
    for row, one in enumerate(found):
        assert one.error is None and one.token_id in sets[row]
        if temperature == 0:
            assert one.token_id == max(sets[row], key=lambda i: logits[row, i].item())


def test_other_parameters_work_within_the_grammar():
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 5], logits[0, EOS] = 9.0, 5.0, 7.0

    def token(*allowed, output=(), **params):
        (found,) = sample(logits, [constrained(allowed, output=output, temperature=0, **params)])
        assert found.error is None and not found.is_complete
        return found.token_id

    assert token(5, 6) == 5
    assert token(5, 6, logit_bias={4: 100.0, 6: 6.0}) == 6
    assert token(5, 6, allowed_token_ids=[4, 6]) == 6
    assert token(5, 6, bad_words_token_ids=((5,),)) == 6
    assert token(5, 6, frequency_penalty=2.0, output=[5, 5, 5]) == 6
    assert token(5, EOS) == EOS
    assert token(5, EOS, min_tokens=3) == 5
    assert token(5, 6, repetition_penalty=0.01, prompt=[4]) == 5


def test_log_probabilities_know_nothing_of_grammars():
    logits = logits_of(2)
    (free,) = sample(logits, [state(temperature=0, logprobs=3)])
    forced = constrained([9], temperature=0, logprobs=3)
    (found,) = sample(logits, [forced])
    assert free.token_id != found.token_id == 9 and found.logprobs.top == free.logprobs.top
    assert found.logprobs.logprob < free.logprobs.logprob


def test_where_nothing_is_left_the_output_is_complete_or_in_error():
    logits = logits_of(0, rows=5)
    logits[4] = math.nan
    states = [
        constrained([5], matcher=FakeMatcher(accepting=True), bad_words_token_ids=((5,),)),
        constrained([5], bad_words_token_ids=((5,),)),
        constrained([5], matcher=FakeMatcher(error="lost its way")),
        constrained([5], matcher=FakeMatcher(accepting=True)),
        constrained(range(VOCAB), matcher=FakeMatcher(accepting=True)),
    ]
    found = sample(logits, states)
    assert [one.is_complete for one in found] == [True, False, False, False, False]
    assert found[0].error is None and found[0].logprobs is None
    assert "structured output allows next" in found[1].error
    assert found[2].error == "structured output cannot go on: lost its way"
    assert (found[3].error, found[3].token_id) == (None, 5)
    assert "not finite" in found[4].error


def test_a_state_with_a_fault_samples_nothing():
    broken = state()
    broken.fault = "never had a chance"
    (found, fine) = sample(logits_of(0, rows=2), [broken, state()])
    assert found.error == "never had a chance" and fine.error is None


def test_candidates_are_found_quickly_where_most_is_ruled_out(monkeypatch):
    """Tokens that are ruled out are equal in rank, but nobody needs to know which come first."""
    logits = logits_of(0, vocab=5000)
    wanted = constrained([], top_k=5, seed=1, vocab=5000)
    wanted.mask = np.packbits(np.arange(5000) < 20, bitorder="little")
    (expected,) = sample(logits, [wanted])
    monkeypatch.setattr(torch, "sort", None)
    (found,) = sample(logits, [wanted])
    assert found.token_id == expected.token_id < 20
