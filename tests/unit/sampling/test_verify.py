"""Sampling in turn gives the tokens that one step each would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.sampling.pipeline import sample
from octavo.sampling.state import RequestSampling
from octavo.sampling.verify import sample_in_turn

VOCAB = 12
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
    {"temperature": 1.2, "presence_penalty": 1.5, "top_k": 4, "logit_bias": {3: 2.0}},
    {"temperature": 0, "bad_words_token_ids": ((1, 2), (5,))},
    {"temperature": 0, "min_tokens": 3, "logprobs": 2, "stop_token_ids": (4, 7)},
]


def state(params: dict[str, Any], seed: int) -> RequestSampling:
    return RequestSampling(
        SamplingParams(max_tokens=50, **params),
        seed=seed,
        eos_token_ids=frozenset({0}),
        prompt_token_ids=[1, 2, 3],
        output_token_ids=[],
        vocab_size=VOCAB,
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_equal_to_one_step_after_the_other(data: st.DataObject, seed: int) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(PARAMS))), min_size=1, max_size=4))
    drafts = [data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=5)) for _ in rows]
    total = sum(1 + len(draft) for draft in drafts)
    logits = 3 * torch.randn(total, VOCAB, generator=torch.Generator().manual_seed(seed))
    if data.draw(st.booleans()):  # make some guesses right
        at = 0
        for draft in drafts:
            for index, token in enumerate(draft[:2]):
                logits[at + index, token] = 20.0
            at += 1 + len(draft)
    states = [state(PARAMS[kind], seed + number) for number, kind in enumerate(rows)]

    def take(row: int, token: int) -> bool:
        states[row].append(token)
        return True

    found = sample_in_turn(logits, states, drafts, take=take, fill_masks=lambda _: None)
    at = 0
    for number, (kind, draft) in enumerate(zip(rows, drafts, strict=True)):
        alone, expected = state(PARAMS[kind], seed + number), []
        for index in range(1 + len(draft)):
            [result] = sample(logits[at + index : at + index + 1], [alone])
            expected.append(result)
            alone.append(result.token_id)
            if index == len(draft) or result.token_id != draft[index]:
                break
        assert found[number] == expected
        assert states[number].output_token_ids == [item.token_id for item in expected]
        at += 1 + len(draft)


@pytest.mark.parametrize("wrong_at", [0, 1, 3])
@pytest.mark.parametrize(
    "params", [{"temperature": 1.0}, {"temperature": 0.6, "top_k": 8}, {"top_p": 0.7}]
)
def test_the_distribution_is_that_of_the_model(params: dict[str, Any], wrong_at: int) -> None:
    """Chi-square over many seeds, at each position of a draft, given that it was reached."""
    generator = torch.Generator().manual_seed(7)
    logits = 1.5 * torch.randn(4, VOCAB, generator=generator)
    draft = logits.argmax(-1)[:3].tolist()
    if wrong_at < 3:  # a guess that is seldom right instead of one that often is
        draft[wrong_at] = int(logits[wrong_at].argsort()[-4])
    counts = np.zeros((4, VOCAB))
    states = [state(params, seed) for seed in range(12_000)]
    for begin in range(0, len(states), 1000):
        part = states[begin : begin + 1000]

        def take(row: int, token: int, part: list[RequestSampling] = part) -> bool:
            part[row].append(token)
            return True

        found = sample_in_turn(
            logits.repeat(len(part), 1),
            part,
            [draft] * len(part),
            take=take,
            fill_masks=lambda _: None,
        )
        for tokens in found:
            for position, sampled in enumerate(tokens):
                counts[position, sampled.token_id] += 1
    num_tested = 0
    for position in range(4):
        total = counts[position].sum()
        target = allowed(logits[position].double(), params).numpy()
        assert counts[position][target == 0].sum() == 0
        expected = target[target > 0] * total
        if total < 500:
            continue  # seldom reached
        num_tested += 1
        statistic = ((counts[position][target > 0] - expected) ** 2 / expected).sum()
        freedom = len(expected) - 1
        # Mean and deviation of chi-square are n and sqrt(2 n); 5 of them are one in a million.
        assert statistic <= freedom + 5 * (2 * freedom) ** 0.5, f"position {position}"
    assert num_tested >= 2


def allowed(logits: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
    """The distribution to sample from, written down once more as simply as can be."""
    probabilities = torch.softmax(logits / params.get("temperature", 1.0), -1)
    order = probabilities.argsort(descending=True)
    if "top_k" in params:
        probabilities[order[params["top_k"] :]] = 0
    if "top_p" in params:
        before = probabilities[order].cumsum(-1) - probabilities[order]
        probabilities[order[before >= params["top_p"]]] = 0
    return probabilities / probabilities.sum()


def test_an_error_comes_only_with_the_first_token() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[0, 5] = 9.0
    logits[1] = torch.nan
    states = [state({"temperature": 0}, 0)]
    taken: list[int] = []
    found = sample_in_turn(
        logits,
        states,
        [[5, 5]],
        take=lambda _, token: taken.append(token) is None,
        fill_masks=lambda _: None,
    )
    assert [item.token_id for item in found[0]] == taken == [5]
    [[first]] = sample_in_turn(
        logits[1:2], states, [[]], take=lambda *_: True, fill_masks=lambda _: None
    )
    assert first.error is not None


def test_nothing_follows_a_token_that_could_not_be_taken() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 5] = 9.0
    states = [state({"temperature": 0}, 0)]
    found = sample_in_turn(
        logits, states, [[5, 5]], take=lambda *_: False, fill_masks=lambda _: None
    )
    assert len(found[0]) == 1


@pytest.mark.parametrize("length", [0, 1, 4])
def test_all_right_guesses_give_one_token_more(length: int) -> None:
    logits = torch.zeros(1 + length, VOCAB)
    logits[:, 5] = 9.0
    states = [state({"temperature": 0}, 0)]

    def take(row: int, token: int) -> bool:
        states[row].append(token)
        return True

    found = sample_in_turn(logits, states, [[5] * length], take=take, fill_masks=lambda _: None)
    assert [item.token_id for item in found[0]] == [5] * (length + 1)
