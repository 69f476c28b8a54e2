"""Embeddings and scores of prompts: transformers' hidden states, whatever else is computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.checkpoints import VOCAB_SIZE, write_checkpoint

from octavo import LLM, SamplingParams
from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.kernels.native import instruction_sets

Make = Callable[..., LLM]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3": {},
    "smollm2": {},
    "mistral": {"sliding_window": 13},
    "qwen2": {},
    "qwen3": {},
}
LENGTHS = (1, 7, 15, 16, 17, 33, 100)
SCORES = SamplingParams(max_tokens=0, prompt_logprobs=2)


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


PROMPTS = [prompt(length) for length in LENGTHS]


def vectors(llm: LLM, prompts: list[list[int]], kind: str) -> list[bytes]:
    return [found.vector.tobytes() for found in llm.embed(prompts, pooling=kind, progress=False)]


def scores(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    outputs = llm.generate(prompts, SCORES, progress=False)
    assert all(output.outputs[0].token_ids == [] for output in outputs)
    return [
        [(e.token_id, e.logprob, e.rank, *((t.token_id, t.logprob) for t in e.top)) for e in found]
        for found in (output.prompt_logprobs[1:] for output in outputs)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_and_scores_are_those_of_transformers(
    family: str, kernels: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "m", family, **FAMILIES[family])
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    llm = LLM(str(tmp_path / "m"), dtype="float32", kernels=kernels, num_threads=1, num_blocks=128)
    found = {kind: llm.embed(PROMPTS, pooling=kind, progress=False) for kind in ("mean", "last")}
    scored = scores(llm, PROMPTS)
    for index, ids in enumerate(PROMPTS):
        with torch.inference_mode():
            theirs = reference(torch.tensor([ids]), output_hidden_states=True)
        states = theirs.hidden_states[-1][0].double()
        for kind, vector in (("mean", states.mean(0)), ("last", states[-1])):
            ours = found[kind][index].vector
            assert np.linalg.norm(ours.astype(np.float64)) == pytest.approx(1, abs=1e-6)
            np.testing.assert_allclose(ours, (vector / vector.norm()).numpy(), atol=5e-5)
        logprobs = torch.log_softmax(theirs.logits[0], -1)
        expected = [logprobs[at, token].item() for at, token in enumerate(ids[1:])]
        assert [entry[1] for entry in scored[index]] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_company_chunks_caches_and_preemption_change_nothing(
    make_llm: Make, kernels: str, kind: str
) -> None:
    alone_llm = make_llm(enable_prefix_caching=False)
    alone = [vectors(alone_llm, [ids], kind)[0] for ids in PROMPTS]
    alone_scores = [scores(alone_llm, [ids])[0] for ids in PROMPTS]

    def check(llm: LLM, strangers: int = 0) -> None:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        extra = [prompt(1 + 7 * i % 60, seed=i) for i in range(strangers)]
        wanted = SamplingParams(max_tokens=0, pooling=kind, prompt_logprobs=2)
        both = llm.generate(
            [*extra, *PROMPTS], [*[params] * len(extra), *[wanted] * len(PROMPTS)], progress=False
        )
        assert all(len(output.outputs[0].token_ids) == 20 for output in both[: len(extra)])
        found = vectors(llm, PROMPTS, kind)
        if kernels == "native":
            assert found == alone
            assert scores(llm, PROMPTS) == alone_scores
        for ours, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(
                *(np.frombuffer(v, np.float32) for v in (ours, theirs)), atol=1e-3
            )

    check(make_llm(), strangers=20)
    check(make_llm(max_num_batched_tokens=7, max_num_seqs=3))
    check(make_llm(num_blocks=10, max_model_len=128), strangers=6)


def test_a_mean_computes_every_token_and_the_last_one_only_its_own(make_llm: Make) -> None:
    llm = make_llm()
    (ids,) = PROMPTS[-1:]
    llm.generate([ids], SamplingParams(max_tokens=1), progress=False)
    assert llm.embed([ids], pooling="mean", progress=False)[0].num_cached_tokens == 0
    assert llm.embed([ids], pooling="last", progress=False)[0].num_cached_tokens == 96
    again = llm.generate([ids], SamplingParams(max_tokens=1), progress=False)
    assert again[0].num_cached_tokens == 96


def test_an_embedding_beside_an_output(make_llm: Make, kernels: str) -> None:
    llm = make_llm()
    plain = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, n=2, seed=1)
    both = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, n=2, seed=1, pooling="mean")
    (expected,) = llm.generate([PROMPTS[3]], plain, progress=False)
    (found,) = llm.generate([PROMPTS[3]], both, progress=False)
    assert [c.token_ids for c in found.outputs] == [c.token_ids for c in expected.outputs]
    alone = llm.embed([PROMPTS[3]], progress=False)[0].vector
    assert expected.embedding is None and found.embedding is not None
    state = np.frombuffer(found.embedding, np.float32)
    np.testing.assert_allclose(state / np.linalg.norm(state), alone, atol=1e-5)


def test_forms_of_prompts_and_what_is_refused(make_llm: Make) -> None:
    llm = make_llm(max_model_len=64)
    ids = llm.tokenizer.encode("the fox")
    found = llm.embed(["the fox", ids, {"prompt": "the fox"}], progress=False)
    assert len({e.vector.tobytes() for e in found}) == 1
    assert found[0].vector.shape == (llm.info.spec.hidden_size,)
    assert found[0].prompt_token_ids == tuple(ids)
    assert len(llm.embed("the fox", progress=False)) == 1
    assert llm.embed([], progress=False) == []
    assert len(llm.embed([[5] * 64], progress=False)) == 1
    with pytest.raises(ContextTooLong, match="64 tokens or less"):
        llm.embed([[5] * 65], progress=False)
    with pytest.raises(InvalidParameter, match="pooling"):
        llm.embed(["a"], pooling="max", progress=False)
    with pytest.raises(InvalidParameter, match="empty"):
        llm.embed([[]], progress=False)


def test_scores_are_cosines(make_llm: Make) -> None:
    llm = make_llm()
    texts = ["the quick fox", "a lazy dog", "the quick fox"]
    one = llm.score(texts[0], texts, progress=False)
    assert one[0] == one[2] == pytest.approx(1, abs=1e-6)
    assert -1 <= one[1] < 0.999
    assert llm.score(texts, texts, progress=False) == pytest.approx([1, 1, 1], abs=1e-6)
    a, b = (e.vector for e in llm.embed(texts[:2], pooling="last", progress=False))
    (last,) = llm.score(texts[0], texts[1], pooling="last", progress=False)
    assert last == pytest.approx(float(a @ b), abs=1e-6)
    with pytest.raises(InvalidParameter, match="text_1 has 2 texts and text_2 has 3"):
        llm.score(texts[:2], texts, progress=False)
    with pytest.raises(InvalidParameter, match="text_2 is empty"):
        llm.score("a", [], progress=False)


def test_bits_hold_in_every_precision(tiny_model: Path) -> None:
    if not instruction_sets():
        pytest.skip("octavo-native is not installed: no compiler when `make test` installed")
    for options in ({"dtype": "bfloat16"}, {"quantization": "int8", "kv_cache_dtype": "int8"}):
        base = {"num_blocks": 256, "num_threads": 1, "kernels": "native", **options}
        whole = LLM(str(tiny_model), **base)
        cut = LLM(str(tiny_model), **base, max_num_batched_tokens=7, max_num_seqs=3)
        for kind in ("mean", "last"):
            assert vectors(whole, PROMPTS, kind) == vectors(cut, PROMPTS, kind)
