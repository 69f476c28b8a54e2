from __future__ import annotations

import random

import pytest
import torch
from support.stepping import GREEDY, Stepper, make_runner
from support.tiny_models import tiny_decoder, tiny_spec

from octavo.core.errors import ExecutorError
from octavo.core.params import SamplingParams, Structured
from octavo.core.plan import BlockCopy, ScheduledRequest, StepPlan
from octavo.runner import memory

PROMPT_LENS = [1, 15, 16, 17, 31, 32, 33]


@pytest.fixture(scope="module")
def model():
    return tiny_decoder()


def prompt_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(97) for _ in range(length)]


def generate(model, lens=PROMPT_LENS, *, chunk=10**9, seed=0, block_size=16, **options):
    runner = make_runner(model, block_size=block_size, **options)
    stepper = Stepper(runner, block_size=block_size, seed=seed)
    for length in lens:
        stepper.add(str(length), prompt_of(length))
    return stepper.generate(20, chunk=chunk)


@pytest.fixture(scope="module")
def expected(model):
    """Each request alone, its prompt whole, on the reference back-end."""
    tokens = {}
    for length in PROMPT_LENS:
        tokens |= generate(model, [length], backend="reference")
    assert len({tuple(out) for out in tokens.values()}) == len(PROMPT_LENS)
    return tokens


@pytest.mark.parametrize("chunk", [1, 7, 16, 10**9])
@pytest.mark.parametrize("block_size", [8, 16])
def test_tokens_do_not_depend_on_chunks_blocks_or_company(model, expected, chunk, block_size):
    for seed in (0, 1):
        assert generate(model, chunk=chunk, seed=seed, block_size=block_size) == expected


def test_tokens_do_not_depend_on_sliding_window_chunks():
    model = tiny_decoder(tiny_spec(sliding_window=9))
    expected = generate(model, backend="reference")
    for chunk in (1, 7, 10**9):
        assert generate(model, chunk=chunk) == expected


def test_resumed_request_goes_on_where_it_was(model, expected):
    stepper = Stepper(make_runner(model))
    stepper.add("33", prompt_of(33))
    stepper.add("17", prompt_of(17))
    stepper.step({"33": 33, "17": 17})
    for _ in range(6):
        stepper.step({"33": 1, "17": 1})
    known = list(stepper.known["33"])
    stepper.release("33")
    stepper.step({"17": 1})
    stepper.add("33", known, num_prompt_tokens=33)
    stepper.step({"33": 11, "17": 1})
    stepper.step({"33": len(known) - 11, "17": 1})
    assert stepper.generate(20) == {"33": expected["33"], "17": expected["17"]}


def test_request_may_be_released_and_admitted_in_one_plan(model, expected):
    stepper = Stepper(make_runner(model, max_num_seqs=1))
    stepper.add("16", prompt_of(16))
    stepper.step({"16": 16})
    stepper.release("16")
    stepper.add("16", stepper.known["16"], num_prompt_tokens=16)
    assert stepper.generate(20)["16"] == expected["16"]


def test_fork_copies_the_block_it_writes_to(model, expected):
    # The fork computes the last prompt token into a block that its parent has filled and uses.
    stepper = Stepper(make_runner(model))
    stepper.add("33", prompt_of(33))
    stepper.step({"33": 33})
    *shared, source = stepper.blocks["33"]
    target = stepper.pool.pop()
    stepper.add("fork", prompt_of(33), block_ids=[*shared, source], computed=32)
    stepper.step({"33": 1, "fork": 1}, copies=[BlockCopy("fork", 2, source, target)])
    assert stepper.generate(20) == {"33": expected["33"], "fork": expected["33"]}


def test_prefix_blocks_of_another_request_are_read(model, expected):
    stepper = Stepper(make_runner(model))
    stepper.add("33", prompt_of(33))
    stepper.step({"33": 33})
    stepper.add("reader", prompt_of(33), block_ids=stepper.blocks["33"][:2], computed=32)
    assert stepper.generate(20)["reader"] == expected["33"]


def test_logprobs_of_prompt_and_output_agree_with_the_model(model):
    params = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=3, max_tokens=None)
    prompt = prompt_of(33)
    found = {}
    for chunk in (5, 33):
        stepper = Stepper(make_runner(model))
        stepper.add("a", prompt, params=params)
        rows = []
        while stepper.computed["a"] < 33:
            rows.append(stepper.step({"a": min(chunk, 33 - stepper.computed["a"])})["a"])
        found[chunk] = [entry for row in rows for entry in row.prompt_logprobs]
        assert [len(row.logprobs) for row in rows] == [0] * (len(rows) - 1) + [1]
        assert rows[-1].logprobs[0].token_id == rows[-1].token_ids[0]
        assert rows[-1].logprobs[0].rank == 1
        assert stepper.step({"a": 1})["a"].prompt_logprobs == ()
    assert [entry.token_id for entry in found[33]] == prompt[1:]
    for a, b in zip(found[5], found[33], strict=True):
        assert (a.token_id, a.rank, len(a.top)) == (b.token_id, b.rank, 3)
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_logits_in_small_parts_change_nothing(model, expected, monkeypatch):
    monkeypatch.setattr(memory, "MAX_LOGITS_BYTES", 97 * 4 * 3)
    sizes = []
    whole = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: sizes.append(len(hidden)) or whole(hidden))
    assert generate(model) == expected
    assert max(sizes) == 3


def test_only_rows_that_want_a_sample_make_logits(model, monkeypatch):
    sizes = []
    whole = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: sizes.append(len(hidden)) or whole(hidden))
    stepper = Stepper(make_runner(model))
    stepper.add("a", prompt_of(33))
    stepper.add("b", prompt_of(5))
    stepper.step({"a": 20})
    assert sizes == []
    stepper.step({"a": 13, "b": 5})
    assert sizes == [2]


def test_one_row_that_fails_leaves_its_neighbours_alone(model, expected):
    stepper = Stepper(make_runner(model))
    stepper.add("17", prompt_of(17))
    stepper.add("sick", [0, 1])
    weight = model.embed.weight.data
    healthy = weight[1].clone()
    weight[1] = torch.nan
    try:
        assert 1 not in prompt_of(17)
        rows = stepper.step({"17": 17, "sick": 2})
    finally:
        weight[1] = healthy
    assert rows["sick"].error
    assert rows["sick"].token_ids == ()
    stepper.release("sick")
    del stepper.known["sick"]
    assert stepper.generate(20) == {"17": expected["17"]}


def test_failure_of_the_model_is_an_executor_error(model, monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError("out of memory")

    runner = make_runner(model)
    stepper = Stepper(runner)
    stepper.add("a", prompt_of(17))
    monkeypatch.setattr(model, "forward", fail)
    runner.submit(stepper.plan({"a": 17}))
    with pytest.raises(ExecutorError, match=r"step 0 \(1 rows, 17 tokens\).*out of memory"):
        runner.collect()


def test_row_of_an_unknown_request_is_an_executor_error(model):
    runner = make_runner(model)
    runner.submit(StepPlan(step_id=7, rows=(ScheduledRequest("ghost", 0, 1),)))
    with pytest.raises(ExecutorError, match="ghost"):
        runner.collect()


def test_steps_are_collected_in_order_with_their_times(model):
    runner = make_runner(model)
    stepper = Stepper(runner)
    stepper.add("a", prompt_of(17), params=GREEDY)
    stepper.add("b", prompt_of(5))
    plans = [stepper.plan({"a": 17}), stepper.plan({"b": 5})]
    for plan in plans:
        runner.submit(plan)
    for plan in plans:
        result = runner.collect()
        assert result.step_id == plan.step_id
        times = result.times
        assert min(times.prepare_s, times.forward_s, times.sample_s) > 0


def test_plan_without_rows_releases(model):
    runner = make_runner(model, max_num_seqs=1)
    stepper = Stepper(runner)
    stepper.add("a", prompt_of(3))
    stepper.step({"a": 3})
    stepper.release("a")
    assert stepper.step({}) == {}
    stepper.add("b", prompt_of(3))
    assert stepper.step({"b": 3})["b"].token_ids


def test_without_grammars_structured_output_is_an_error_of_its_own(model, expected):
    stepper = Stepper(make_runner(model), block_size=16)
    stepper.add("17", prompt_of(17))
    params = SamplingParams(temperature=0, structured=Structured.regex("a"))
    stepper.add("shaped", prompt_of(5), params=params)
    rows = stepper.step({"17": 17, "shaped": 5})
    assert "cannot constrain" in rows["shaped"].error and rows["shaped"].token_ids == ()
    assert rows["17"].token_ids == tuple(expected["17"][:1])
