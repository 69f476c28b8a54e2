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


def test_a_question_is_answered(llm: LLM) -> None:
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        SamplingParams(temperature=0, max_tokens=24),
        progress=False,
    )
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
