from __future__ import annotations

import numpy as np
import pytest
import torch
from support.stepping import Stepper, make_runner
from support.tiny_models import tiny_decoder

from octavo.core.params import SamplingParams
from octavo.runner.pooling import PromptPool

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(50, 12)).astype(np.float32)


def pooled(kind, cuts):
    pool = PromptPool(kind)
    for begin, end in zip([0, *cuts], [*cuts, len(STATES)], strict=True):
        part = STATES[begin:end][pool.wanted(end - begin, is_end=end == len(STATES))]
        if len(part):
            pool.add(part)
    return pool.result()


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_the_cuts_of_a_prompt_change_no_bit(kind):
    whole = pooled(kind, [])
    for cuts in ([1], [49], [7, 8, 30], list(range(1, 50))):
        assert pooled(kind, cuts) == whole


def test_what_it_is():
    mean = np.frombuffer(pooled("mean", [20]), np.float32)
    np.testing.assert_allclose(mean, STATES.astype(np.float64).mean(0), rtol=1e-6)
    assert pooled("last", [20]) == STATES[-1].tobytes()


def test_of_a_chunk_before_the_end_the_last_state_needs_nothing():
    assert PromptPool("last").wanted(9, is_end=False) == slice(0, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error(value):
    pool = PromptPool("mean")
    pool.add(np.array([[value, 1], [-value, 1]], np.float32))
    with pytest.raises(FloatingPointError, match="not finite"):
        pool.result()


def test_a_sum_may_be_larger_than_the_mean_can_be():
    pool = PromptPool("mean")
    pool.add(np.full((4, 2), 3e38, np.float32))
    assert pool.result() == np.full(2, 3e38, np.float32).tobytes()


def test_a_fault_of_one_prompt_leaves_its_neighbours_alone():
    model = tiny_decoder()
    runner = make_runner(model)
    plain = Stepper(runner)
    params = SamplingParams(temperature=0, max_tokens=3, pooling="mean")
    plain.add("a", [5, 6, 7], params=params)
    expected = plain.step({"a": 3})["a"]
    plain.release("a")
    # A token whose embedding is NaN spoils what is computed from it, and nothing else.
    with torch.inference_mode():
        model.embed.weight[9] = float("nan")
    plain.add("b", [5, 6, 7], params=params)
    plain.add("c", [9, 6, 7], params=params)
    rows = plain.plan({"b": 3, "c": 3})
    runner.submit(rows)
    b, c = runner.collect().rows
    assert (b.embedding, b.token_ids) == (expected.embedding, expected.token_ids)
    assert c.embedding is None and "not finite" in c.error


def test_embeddings_come_with_the_end_of_the_prompt_in_any_company():
    model = tiny_decoder()
    runner = make_runner(model)
    stepper = Stepper(runner)
    prompt = [int(token) for token in RNG.integers(0, 97, 33)]
    params = SamplingParams(temperature=0, max_tokens=4, pooling="mean")
    stepper.add("whole", prompt, params=params)
    whole = stepper.step({"whole": 33})["whole"]
    stepper.add("cut", prompt, params=params)
    stepper.add("other", prompt[:9])
    assert stepper.step({"cut": 16, "other": 9, "whole": 1})["cut"].embedding is None
    cut = stepper.step({"other": 1, "cut": 17})["cut"]
    states = [np.frombuffer(row.embedding, np.float32) for row in (whole, cut)]
    np.testing.assert_allclose(*states, rtol=1e-4, atol=1e-6)
    assert stepper.step({"cut": 1})["cut"].embedding is None
