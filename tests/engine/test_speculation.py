"""Guessing ahead changes how many steps it takes, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import VOCAB_SIZE, write_checkpoint

from octavo import LLM, SamplingParams, Structured
from octavo.core.errors import ConfigError
from octavo.kernels.native import instruction_sets

ALWAYS = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "adaptive": False}
ADAPTIVE = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1}


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random, with repetitions."""
    rng = random.Random(f"{length}/{seed}")
    part = [rng.randrange(3, VOCAB_SIZE) for _ in range(max(1, length // 3))]
    return (part * 4)[:length]


PROMPTS = [prompt(length) for length in (1, 2, 9, 15, 16, 17, 33, 60, 120)]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "random": {"temperature": 0.8, "seed": 7},
    "penalties": {"temperature": 0, "repetition_penalty": 1.02, "frequency_penalty": 0.02},
    "cuts": {"temperature": 1.0, "seed": 3, "top_p": 0.7, "top_k": 9, "min_p": 0.02},
    "bias": {"temperature": 0, "logit_bias": {9: 4.0}, "bad_words_token_ids": ((5, 6), (7,))},
    "stops": {"temperature": 0, "stop_token_ids": (40, 41, 42, 43, 44, 45), "min_tokens": 5},
    "form": {"temperature": 0, "structured": Structured.regex("(ab|cd|e ?)*")},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("spec") / "m", "smollm2")


def make(path: Path, **options: Any) -> LLM:
    defaults = {"num_blocks": 256, "max_model_len": 200, "num_threads": 2, "max_num_seqs": 32}
    return LLM(str(path), **{**defaults, **options})


class Run:
    """Outputs to the last bit, and what was guessed on the way."""

    def __init__(self, llm: LLM, prompts: list[list[int]], params: SamplingParams) -> None:
        self.drafted = self.accepted = self.num_steps = 0
        step = llm._engine.step

        def counted() -> Any:
            deltas, stats = step()
            self.num_steps += 1
            self.drafted += sum(stats.drafted)
            self.accepted += sum(stats.accepted)
            return deltas, stats

        llm._engine.step = counted  # type: ignore[method-assign]
        outputs = llm.generate(prompts, params, progress=False)
        llm._engine.step = step  # type: ignore[method-assign]
        self.outputs = [
            (
                completion.token_ids,
                completion.text,
                completion.finish_reason,
                completion.stop_reason,
                [(entry.token_id, entry.logprob) for entry in completion.logprobs or ()],
            )
            for output in outputs
            for completion in output.outputs
        ]


@pytest.fixture(autouse=True)
def invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CHECK_INVARIANTS", "1")


@pytest.mark.skipif(not instruction_sets(), reason="octavo-native is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_with_and_without(checkpoint: Path, kind: str) -> None:
    params = SamplingParams(max_tokens=40, logprobs=1, **KINDS[kind])
    plain = Run(make(checkpoint), PROMPTS, params)
    assert plain.drafted == 0
    guessing = Run(make(checkpoint, speculative_config=ALWAYS), PROMPTS, params)
    assert guessing.outputs == plain.outputs
    assert 0 < guessing.accepted < guessing.drafted
    adaptive = Run(make(checkpoint, speculative_config=ADAPTIVE), PROMPTS, params)
    assert adaptive.outputs == plain.outputs


@pytest.mark.skipif(not instruction_sets(), reason="octavo-native is not installed")
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"num_blocks": 26},
        {"block_size": 8},
        {"enable_prefix_caching": False},
        {"quantization": "int8", "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_same_bits_however_steps_are_cut(checkpoint: Path, options: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=40, logprobs=1, temperature=0, ignore_eos=True)
    same = {key: options[key] for key in ("quantization", "kv_cache_dtype") if key in options}
    plain = Run(make(checkpoint, **same), PROMPTS, params)
    llm = make(checkpoint, speculative_config=ALWAYS, **options)
    for _ in range(2):  # the second time from the prefix cache
        guessing = Run(llm, PROMPTS, params)
        assert guessing.outputs == plain.outputs
        assert guessing.accepted > 0


def test_same_tokens_with_torch(checkpoint: Path) -> None:
    params = SamplingParams(max_tokens=30, temperature=0)
    options = {"kernels": "torch", "dtype": "float32"}
    plain = Run(make(checkpoint, **options), PROMPTS, params)
    guessing = Run(make(checkpoint, speculative_config=ALWAYS, **options), PROMPTS, params)
    assert [output[0] for output in guessing.outputs] == [output[0] for output in plain.outputs]
    assert guessing.accepted > 0


def test_limits_inside_a_draft(checkpoint: Path) -> None:
    """Lengths of output and of context are kept to the token."""
    llm = make(checkpoint, speculative_config=ALWAYS, max_model_len=64)
    plain = make(checkpoint, max_model_len=64)
    for max_tokens in (1, 2, 3, 5, 8, 13, None):
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        short = [prompt(30), prompt(62), prompt(63)]
        assert Run(llm, short, params).outputs == Run(plain, short, params).outputs


def test_stop_strings_and_several_completions(checkpoint: Path) -> None:
    params = SamplingParams(n=3, max_tokens=40, temperature=0.9, seed=5, stop=("e", "th"))
    guessing = Run(make(checkpoint, speculative_config=ALWAYS), PROMPTS, params)
    assert guessing.outputs == Run(make(checkpoint), PROMPTS, params).outputs


def test_fewer_steps_where_text_repeats(checkpoint: Path) -> None:
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
    plain = Run(make(checkpoint), [prompt(60)], params)
    guessing = Run(make(checkpoint, speculative_config=ALWAYS), [prompt(60)], params)
    assert guessing.num_steps < plain.num_steps
    assert guessing.num_steps + guessing.accepted == plain.num_steps


def test_all_blocks_come_back(checkpoint: Path) -> None:
    llm = make(checkpoint, speculative_config=ALWAYS, enable_prefix_caching=False)
    Run(llm, PROMPTS, SamplingParams(max_tokens=30, temperature=0.7, seed=1))
    assert llm._engine.stats().cache.num_free_blocks == 256


def test_a_mistake_is_told_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="speculative_config has the method"):
        LLM("no such model", speculative_config={"method": "magic"})
