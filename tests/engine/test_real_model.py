"""SmolLM2 against transformers, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams

pytestmark = pytest.mark.real_model

NEW_TOKENS = 16
TEXT = (
    "The history of the book begins long before printing. Scribes copied every page by hand, and a "
    "single volume could take a year. When movable type arrived, the same pages could be set once "
    "and printed a thousand times; what had been a treasure became a tool. "
)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at",
    "Frage: Wie heißt die Hauptstadt von Deutschland?\nAntwort:",
    "import numpy as np\n\n",
    "Q: What is 17 + 25?\nA:",
    TEXT,
    TEXT * 3,
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "🙂 日本語 é",
]
LENGTHS = (1, 15, 16, 17, 31, 32, 33)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", dtype="float32", num_blocks=1000, max_model_len=1024)


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    book = llm.tokenizer.encode(TEXT)
    return [llm.tokenizer.encode(text) for text in PROMPTS] + [book[:n] for n in LENGTHS]


@pytest.fixture(scope="module")
def expected(smollm2_reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    outputs = []
    for prompt in prompts:
        ids = smollm2_reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        outputs.append(ids[0, len(prompt) :].tolist())
    return outputs


GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)


def token_ids(outputs: list[Any]) -> Iterator[list[int]]:
    return (output.outputs[0].token_ids for output in outputs)


def test_greedy_equals_transformers(llm: LLM, prompts, expected) -> None:
    assert len(prompts) >= 20
    outputs = llm.generate(prompts, GREEDY, progress=False)
    assert list(token_ids(outputs)) == expected


def test_warm_cache_and_chunks_equal_transformers(llm: LLM, prompts, expected) -> None:
    llm.generate(prompts, GREEDY, progress=False)
    again = llm.generate(prompts, GREEDY, progress=False)
    assert sum(output.num_cached_tokens for output in again) > 200
    assert list(token_ids(again)) == expected


def test_embeddings_are_those_of_transformers(llm: LLM, prompts, smollm2_reference: Any) -> None:
    for kind in ("mean", "last"):
        found = llm.embed(prompts[:7], pooling=kind, progress=False)
        for ids, ours in zip(prompts, found, strict=False):
            with torch.inference_mode():
                states = smollm2_reference.model(torch.tensor([ids])).last_hidden_state[0].double()
            theirs = states.mean(0) if kind == "mean" else states[-1]
            torch.testing.assert_close(
                torch.from_numpy(ours.vector).double(), theirs / theirs.norm(), rtol=0, atol=2e-4
            )


def test_scores_of_prompts_are_those_of_transformers(
    llm: LLM, prompts, smollm2_reference: Any
) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    outputs = llm.generate(prompts[:7], params, progress=False)
    for ids, output in zip(prompts, outputs, strict=False):
        with torch.inference_mode():
            logprobs = torch.log_softmax(smollm2_reference(torch.tensor([ids])).logits[0], -1)
        expected = [logprobs[at, token].item() for at, token in enumerate(ids[1:])]
        found = [entry.logprob for entry in output.prompt_logprobs[1:]]
        assert found == pytest.approx(expected, abs=1e-2)
        assert output.outputs[0].token_ids == []


def test_alike_sentences_score_higher(llm: LLM) -> None:
    same, other = llm.score(
        "The cat sat on the mat.",
        ["A cat is sitting on a rug.", "Quarterly earnings rose by four percent."],
        progress=False,
    )
    assert other + 0.05 < same <= 1


def test_a_question_is_answered(llm: LLM) -> None:
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        SamplingParams(temperature=0, max_tokens=24),
        progress=False,
    )
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
