"""Caching, paging, chunking, batching and preemption change speed and memory, never the tokens."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.checkpoints import VOCAB_SIZE

from octavo import LLM, SamplingParams

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 64, 100)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
RANDOM = SamplingParams(
    temperature=1.0, top_p=0.95, top_k=50, seed=7, max_tokens=24, ignore_eos=True
)

Make = Callable[..., LLM]


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


PROMPTS = [prompt(length) for length in LENGTHS]


def tokens(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(prompts, params, progress=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(params=[GREEDY, RANDOM], ids=["greedy", "random"])
def params(request: pytest.FixtureRequest) -> SamplingParams:
    return request.param


@pytest.fixture
def alone(make_llm: Make, params: SamplingParams) -> list[list[int]]:
    """Each prompt on its own, with nothing cached."""
    llm = make_llm(enable_prefix_caching=False)
    return [tokens(llm, [p], params)[0] for p in PROMPTS]


def test_outputs_vary(alone: list[list[int]]) -> None:
    """Guards the other tests: a model that repeats one token would pass them all."""
    assert len({tuple(output) for output in alone}) == len(PROMPTS)
    assert all(len(set(output)) > 4 for output in alone)


def test_batched_with_strangers(make_llm: Make, params: SamplingParams, alone) -> None:
    others = [prompt(1 + i * 3 % 90, seed=i) for i in range(64 - len(PROMPTS))]
    mixed = [*others[:30], *PROMPTS, *others[30:]]
    assert tokens(make_llm(), mixed, params)[30 : 30 + len(PROMPTS)] == alone


@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_chunked(make_llm: Make, params: SamplingParams, alone, chunk: int) -> None:
    llm = make_llm(max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 4))
    assert tokens(llm, PROMPTS, params) == alone


def test_from_a_warm_cache(make_llm: Make, params: SamplingParams, alone) -> None:
    llm = make_llm()
    assert tokens(llm, PROMPTS, params) == alone
    again = llm.generate(PROMPTS, params, progress=False)
    assert [output.outputs[0].token_ids for output in again] == alone
    # A whole-prompt hit still computes the last token.
    expected = [(len(p) - 1) // 16 * 16 for p in PROMPTS]
    assert [output.num_cached_tokens for output in again] == expected


def test_after_preemption(make_llm: Make, params: SamplingParams, alone) -> None:
    """A pool that holds the longest request and little more."""
    llm = make_llm(num_blocks=10, max_model_len=160)
    preemptions = 0
    request_ids = [llm._add(p, params, 0, "") for p in PROMPTS]
    finished = {}
    while len(finished) < len(PROMPTS):
        finished.update(llm._step().finished)
        preemptions += llm.last_stats.num_preemptions
    assert [finished[name].outputs[0].token_ids for name in request_ids] == alone
    assert preemptions > 0


def test_any_order_of_arrival(make_llm: Make, params: SamplingParams, alone) -> None:
    order = list(range(len(PROMPTS)))
    random.Random(1).shuffle(order)
    outputs = tokens(make_llm(max_num_seqs=3), [PROMPTS[i] for i in order], params)
    assert outputs == [alone[i] for i in order]


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_any_block_size(make_llm: Make, params: SamplingParams, alone, block_size: int) -> None:
    assert tokens(make_llm(block_size=block_size), PROMPTS, params) == alone


def test_prompts_that_are_not_cut(make_llm: Make, params: SamplingParams, alone) -> None:
    assert tokens(make_llm(enable_chunked_prefill=False), PROMPTS, params) == alone


def test_reference_attention(make_llm: Make, params: SamplingParams, alone) -> None:
    reference = make_llm(attention_backend="reference", kernels="torch")
    assert tokens(reference, PROMPTS, params) == alone


def test_forks_equal_separate_requests(make_llm: Make) -> None:
    """n completions share the prompt's blocks, and each is what its own seed gives alone."""
    base = SamplingParams(temperature=1.0, seed=11, max_tokens=20, ignore_eos=True)
    for p in PROMPTS:
        llm = make_llm(num_blocks=64, max_model_len=256)
        (forked,) = llm.generate(
            [p],
            SamplingParams(n=4, temperature=1.0, seed=11, max_tokens=20, ignore_eos=True),
            progress=False,
        )
        separate = [
            tokens(
                make_llm(),
                [p],
                SamplingParams(temperature=1.0, seed=11 + i, max_tokens=20, ignore_eos=True),
            )[0]
            for i in range(4)
        ]
        assert [c.token_ids for c in forked.outputs] == separate
        assert separate[0] == tokens(make_llm(), [p], base)[0]


def test_forks_share_memory(make_llm: Make) -> None:
    llm = make_llm(num_blocks=64, max_model_len=256)
    params = SamplingParams(n=8, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
    llm._add(prompt(100), params, 0, "")
    most = 0
    while llm._engine.has_work:
        llm._step()
        most = max(most, llm.last_stats.cache.num_used_blocks)
    # 7 blocks of prompt; each completion has a copy of the last, partial one, and nothing else.
    assert most <= 6 + 8
    assert llm.last_stats.cache.num_used_blocks == 0


def test_salts_do_not_share(make_llm: Make) -> None:
    llm = make_llm()
    p = prompt(64)
    for salt, cached in (("a", 0), ("b", 0), ("a", 48), ("", 0)):
        (output,) = llm.generate([p], GREEDY, cache_salt=salt, progress=False)
        assert output.num_cached_tokens == cached
