"""Guessing ahead changes how many steps it takes, and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.checkpoints import VOCAB_SIZE, write_checkpoint

from octavo import LLM, SamplingParams, Structured
from octavo.core.errors import ConfigError
from octavo.kernels.native import instruction_sets

COMMON = {"num_speculative_tokens": 5, "adaptive": False}
ALWAYS = {"method": "ngram", "prompt_lookup_min": 1, **COMMON}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": ALWAYS,
    "suffix": {"method": "suffix", **COMMON},
    "draft_model": {"method": "draft_model", "model": "{draft}", **COMMON},
    "self": {"method": "self", **COMMON},
}


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


@pytest.fixture(scope="module")
def methods(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What to write for each method; the draft model is a model like the other, a little off."""
    small = tmp_path_factory.mktemp("spec") / "draft"
    shutil.copytree(checkpoint, small)
    weights = safetensors.torch.load_file(small / "model.safetensors")
    noise = torch.Generator().manual_seed(0)
    for value in weights.values():
        value += 0.01 * value.std() * torch.randn(value.shape, generator=noise)
    safetensors.torch.save_file(weights, small / "model.safetensors", metadata={"format": "pt"})
    return {
        name: {key: str(small) if value == "{draft}" else value for key, value in config.items()}
        for name, config in METHODS.items()
    }


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
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_with_and_without(
    checkpoint: Path, methods: dict[str, Any], kind: str, method: str
) -> None:
    params = SamplingParams(max_tokens=40, logprobs=1, **KINDS[kind])
    plain = Run(make(checkpoint), PROMPTS, params)
    assert plain.drafted == 0
    config = methods[method]
    llm = make(checkpoint, speculative_config=config)
    for _ in range(2):  # the second time from the prefix cache, and with answers that are known
        guessing = Run(llm, PROMPTS, params)
        assert guessing.outputs == plain.outputs
    # A random model's guesses know nothing of a grammar.
    assert guessing.accepted > 0 or (kind, method) == ("form", "draft_model")
    assert guessing.accepted < guessing.drafted or method == "suffix"
    adaptive = Run(
        make(checkpoint, speculative_config={**config, "adaptive": True}), PROMPTS, params
    )
    assert adaptive.outputs == plain.outputs


@pytest.mark.skipif(not instruction_sets(), reason="octavo-native is not installed")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"num_blocks": 26},
        {"block_size": 32},
        {"enable_prefix_caching": False},
        {"quantization": "int8", "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_same_bits_however_steps_are_cut(
    checkpoint: Path, methods: dict[str, Any], options: dict[str, Any], method: str
) -> None:
    params = SamplingParams(max_tokens=40, logprobs=1, temperature=0, ignore_eos=True)
    same = {key: options[key] for key in ("quantization", "kv_cache_dtype") if key in options}
    plain = Run(make(checkpoint, **same), PROMPTS, params)
    llm = make(checkpoint, speculative_config=methods[method], **options)
    for _ in range(2):  # the second time from the prefix cache
        guessing = Run(llm, PROMPTS, params)
        assert guessing.outputs == plain.outputs
        assert guessing.accepted > 0


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model"])
def test_same_tokens_with_torch(checkpoint: Path, methods: dict[str, Any], method: str) -> None:
    params = SamplingParams(max_tokens=30, temperature=0)
    options = {"kernels": "torch", "dtype": "float32"}
    plain = Run(make(checkpoint, **options), PROMPTS, params)
    llm = make(checkpoint, speculative_config=methods[method], **options)
    guessing = Run(llm, PROMPTS, params)
    assert [output[0] for output in guessing.outputs] == [output[0] for output in plain.outputs]
    assert guessing.accepted > 0


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_model_that_is_nearly_the_same_guesses_well(
    checkpoint: Path, methods: dict[str, Any], temperature: float
) -> None:
    """Also where prompts come from the prefix cache: that is both models' cache."""
    llm = make(checkpoint, speculative_config=methods["draft_model"])
    params = SamplingParams(max_tokens=100, temperature=temperature, seed=1, ignore_eos=True)
    first = Run(llm, PROMPTS, params)
    assert first.accepted > 0.2 * first.drafted
    again = Run(llm, PROMPTS, params)
    assert again.accepted > 0.8 * first.accepted


@pytest.mark.skipif(not instruction_sets(), reason="octavo-native is not installed")
def test_the_real_model_guesses_its_own_tokens() -> None:
    config = {"method": "self", "num_speculative_tokens": 3, "adaptive": False}
    llm = LLM("smollm2", dtype="bfloat16", max_model_len=256, speculative_config=config)
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    run = Run(llm, [llm.tokenizer.encode("A lighthouse is")], params)
    assert run.accepted > 0.5 * run.drafted
    assert run.num_steps < 25


def test_suffixes_come_from_earlier_answers(checkpoint: Path, methods: dict[str, Any]) -> None:
    llm = make(checkpoint, speculative_config=methods["suffix"])
    params = SamplingParams(max_tokens=60, temperature=0.9, seed=4, ignore_eos=True)
    first = Run(llm, [prompt(33)], params)
    again = Run(llm, [prompt(33)], params)
    assert again.outputs == first.outputs
    assert again.num_steps < 0.6 * first.num_steps


def test_draft_models_that_do_not_fit_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    def wanted(**overrides: Any) -> dict[str, Any]:
        small = write_checkpoint(tmp_path / str(overrides), "smollm2", **overrides)
        return {"method": "draft_model", "model": str(small)}

    with pytest.raises(ConfigError, match=r"vocabulary of 310 tokens, and .* one of 300"):
        make(checkpoint, speculative_config=wanted(vocab_size=310))
    with pytest.raises(ConfigError, match=r"positions up to 128, and max_model_len is 200"):
        make(checkpoint, speculative_config=wanted(max_position_embeddings=128))


def test_self_needs_kernels_and_weights_to_round(checkpoint: Path) -> None:
    config = {"method": "self"}
    with pytest.raises(ConfigError, match="needs the native CPU kernels"):
        make(checkpoint, speculative_config=config, kernels="torch")
    if instruction_sets():
        with pytest.raises(ConfigError, match="gains nothing over weights in int4"):
            make(checkpoint, speculative_config=config, quantization="int4")


def test_a_draft_models_memory_is_in_the_ledger(checkpoint: Path, methods: dict[str, Any]) -> None:
    plain, guessing = (
        make(checkpoint, speculative_config=config).info.cache_plan
        for config in (None, methods["draft_model"])
    )
    assert guessing.bytes_per_block == 2 * plain.bytes_per_block
    assert guessing.memory.weight_bytes == 2 * plain.memory.weight_bytes


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


@pytest.mark.parametrize("method", METHODS)
def test_a_request_may_do_without(checkpoint: Path, methods: dict[str, Any], method: str) -> None:
    """Whoever else guesses in the same steps."""
    plain = Run(make(checkpoint), PROMPTS, SamplingParams(max_tokens=40, temperature=0))
    llm = make(checkpoint, speculative_config=methods[method])
    without = SamplingParams(max_tokens=40, temperature=0, speculative=False)
    alone = Run(llm, PROMPTS, without)
    assert alone.drafted == 0
    assert alone.outputs == plain.outputs
    requests = [
        SamplingParams(max_tokens=40, temperature=0, speculative=bool(k % 2))
        for k in range(len(PROMPTS))
    ]
    mixed = Run(llm, PROMPTS, requests)
    assert mixed.drafted > 0
    assert mixed.outputs == plain.outputs
