"""The offline façade: what a user of `LLM` sees."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from support.checkpoints import VOCAB_SIZE

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.core.errors import ConfigError, ContextTooLong, InvalidParameter

Make = Callable[..., LLM]
SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def test_prompt_forms(make_llm: Make) -> None:
    llm = make_llm()
    ids = llm.tokenizer.encode("hello there")
    forms = ["hello there", ids, {"prompt": "hello there"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(forms, SHORT, progress=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert outputs[0].prompt == "hello there" and outputs[1].prompt is None
    assert (
        llm.generate("hello there", SHORT, progress=False)[0].outputs[0].text
        == outputs[0].outputs[0].text
    )
    assert llm.generate(ids, SHORT, progress=False)[0].prompt_token_ids == tuple(ids)


def test_outputs_come_in_the_order_of_prompts(make_llm: Make) -> None:
    llm = make_llm(max_num_seqs=2)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 5)]
    outputs = llm.generate(["a", "b", "c"], params, progress=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    assert all(output.metrics.total_s >= output.metrics.first_token_s > 0 for output in outputs)


def test_chat_is_the_rendered_prompt(make_llm: Make) -> None:
    llm = make_llm()
    messages = [{"role": "user", "content": "hi"}]
    (chatted,) = llm.chat(messages, SHORT, progress=False)
    (plain,) = llm.generate([llm.render_chat(messages)], SHORT, progress=False)
    assert chatted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert len(llm.chat([messages, messages], SHORT, progress=False)) == 2


def test_stream_is_the_whole_in_pieces(make_llm: Make) -> None:
    llm = make_llm()
    (whole,) = llm.generate(["some text"], SHORT, progress=False)
    deltas = list(llm.stream("some text", SHORT))
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    assert deltas[-1].finish_reason == "length"


def test_closing_a_stream_frees_its_blocks(make_llm: Make) -> None:
    llm = make_llm()
    stream = llm.stream("some text", SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.last_stats.cache.num_used_blocks > 0
    stream.close()
    assert not llm._engine.has_work
    assert llm._engine.stats().cache.num_used_blocks == 0


def test_logprobs(make_llm: Make) -> None:
    llm = make_llm()
    params = SamplingParams(
        temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True
    )
    (output,) = llm.generate([[5, 6, 7, 8]], params, progress=False)
    completion = output.outputs[0]
    assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
    for entry in completion.logprobs:
        assert entry.rank == 1 and len(entry.top) == 3
        assert entry.logprob == entry.top[0].logprob <= 0
    assert output.prompt_logprobs[0] is None
    assert [entry.token_id for entry in output.prompt_logprobs[1:]] == [6, 7, 8]


def test_prompt_logprobs_are_the_same_in_chunks(make_llm: Make) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    prompt = list(range(3, 60))
    whole = make_llm().generate([prompt], params, progress=False)[0].prompt_logprobs
    llm = make_llm(max_num_batched_tokens=7, max_num_seqs=4)
    chunked = llm.generate([prompt], params, progress=False)[0].prompt_logprobs
    assert [e.token_id for e in chunked[1:]] == [e.token_id for e in whole[1:]] == prompt[1:]
    assert all(
        math.isclose(a.logprob, b.logprob, abs_tol=1e-4)
        for a, b in zip(whole[1:], chunked[1:], strict=True)
    )


def test_a_lone_request_that_outgrows_the_pool_ends(make_llm: Make) -> None:
    llm = make_llm(num_blocks=4, max_model_len=64)
    llm2 = make_llm(num_blocks=4, max_model_len="auto")
    for engine in (llm, llm2):
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = engine.generate([[5] * 10], params, progress=False)
        assert output.outputs[0].finish_reason == "length"
        assert 0 < len(output.outputs[0].token_ids) <= 54


def test_refusals_name_the_numbers(make_llm: Make) -> None:
    llm = make_llm(num_blocks=4, max_model_len=64)
    with pytest.raises(ContextTooLong, match="64 tokens"):
        llm.generate([[5] * 64], SHORT, progress=False)
    assert llm.generate([[5] * 63], SHORT, progress=False)[0].outputs[0].finish_reason == "length"
    with pytest.raises(InvalidParameter, match="empty"):
        llm.generate([[]], SHORT, progress=False)
    with pytest.raises(InvalidParameter, match=f"0 to {VOCAB_SIZE - 1}"):
        llm.generate([[VOCAB_SIZE]], SHORT, progress=False)
    with pytest.raises(InvalidParameter, match="stop_token_ids"):
        llm.generate(["a"], SamplingParams(stop_token_ids=[VOCAB_SIZE]), progress=False)
    assert not llm._engine.has_work, "a refused batch leaves nothing behind"


def test_a_refused_batch_generates_nothing(make_llm: Make) -> None:
    llm = make_llm(num_blocks=8, max_model_len=64)
    with pytest.raises(ContextTooLong):
        llm.generate([[5] * 5, [5] * 70], SHORT, progress=False)
    assert not llm._engine.has_work
    assert llm._engine.stats().cache.num_used_blocks == 0


def test_options_are_checked(make_llm: Make) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        make_llm(max_num_seq=4)
    with pytest.raises(ConfigError, match="positions up to"):
        make_llm(max_model_len=10**6)


def test_dummy_weights(make_llm: Make) -> None:
    first, second = (
        make_llm(load_format="dummy", seed=3).generate(["a"], SHORT, progress=False)
        for _ in range(2)
    )
    assert first[0].outputs[0].token_ids == second[0].outputs[0].token_ids


def test_unseeded_requests_differ_and_runs_repeat(make_llm: Make) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    runs = [
        [
            o.outputs[0].token_ids
            for o in make_llm(seed=5).generate(["a"] * 4, params, progress=False)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len({tuple(ids) for ids in runs[0]}) > 1


def test_async_llm(tiny_model) -> None:
    async def main() -> None:
        async with await AsyncLLM.start(str(tiny_model), num_blocks=64, num_threads=1) as llm:
            whole = await llm.complete("hello", SHORT)
            text = ""
            async for deltas in llm.generate("hello", SHORT):
                text += "".join(delta.text for delta in deltas)
            assert text == whole.outputs[0].text
            answers = await asyncio.gather(
                *(llm.chat([{"role": "user", "content": "hi"}], SHORT) for _ in range(10))
            )
            assert len({answer.outputs[0].text for answer in answers}) == 1

    asyncio.run(main())


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [{"max_tokens": 3}], 7, "greedy"])
def test_parameters_of_another_type_are_refused(make_llm: Make, params: Any) -> None:
    llm = make_llm()
    with pytest.raises(InvalidParameter, match="SamplingParams") as caught:
        llm.generate("ab", params, progress=False)
    assert caught.value.param == "sampling_params"
    if isinstance(params, dict):
        with pytest.raises(InvalidParameter, match=r"is a dict: use SamplingParams\(\*\*it\)"):
            next(llm.stream("ab", params))  # type: ignore[arg-type]
