"""The compiled kernels: the same bits in any company, and transformers' answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.checkpoints import VOCAB_SIZE, write_checkpoint

from octavo import LLM, SamplingParams
from octavo.core.errors import ConfigError
from octavo.kernels.native import instruction_sets

pytestmark = pytest.mark.skipif(
    not instruction_sets(), reason="octavo-native is not installed: no compiler was found"
)

LENGTHS = (1, 7, 8, 15, 16, 17, 31, 32, 33, 100, 300)
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
PRECISIONS: tuple[dict[str, str], ...] = (
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"quantization": "int8", "kv_cache_dtype": "int8"},
    {"quantization": "int4"},
)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3": {},
    "smollm2": {},
    "mistral": {"sliding_window": 13},
    "qwen2": {},
    "qwen3": {},
}


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


PROMPTS = [prompt(length) for length in LENGTHS]


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / request.param
    overrides = {"max_position_embeddings": 512, **FAMILIES[request.param]}
    write_checkpoint(path, request.param, **overrides)
    return path


@pytest.fixture(params=instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OCTAVO_CPU_ISA", request.param)
    return request.param


def native(path: Path, **options: Any) -> LLM:
    defaults = {"num_blocks": 512, "kernels": "native", "num_threads": 2, "max_num_seqs": 64}
    return LLM(str(path), **{**defaults, **options})


def bits(llm: LLM, prompts: list[list[int]]) -> list[list[tuple[Any, ...]]]:
    """Tokens, their log-probabilities and the alternatives, to the last bit."""
    outputs = llm.generate(prompts, PARAMS, progress=False)
    return [
        [
            (entry.token_id, entry.logprob, *((t.token_id, t.logprob) for t in entry.top))
            for entry in output.outputs[0].logprobs
        ]
        for output in outputs
    ]


@pytest.mark.parametrize("options", PRECISIONS, ids=str)
def test_bits_do_not_depend_on_company(checkpoint: Path, isa: str, options: dict[str, str]) -> None:
    alone_llm = native(checkpoint, enable_prefix_caching=False, num_threads=1, **options)
    alone = [bits(alone_llm, [p])[0] for p in PROMPTS]
    strangers = [prompt(1 + 7 * i % 60, seed=i) for i in range(30)]
    llm = native(checkpoint, **options)
    assert bits(llm, [*strangers, *PROMPTS])[30:] == alone
    assert bits(llm, PROMPTS) == alone, "from the prefix cache"
    chunked = native(checkpoint, max_num_batched_tokens=7, max_num_seqs=3, **options)
    assert bits(chunked, PROMPTS) == alone
    small = native(checkpoint, num_blocks=24, max_model_len=320, **options)
    assert bits(small, PROMPTS) == alone, "after preemption"


def test_greedy_equals_transformers(checkpoint: Path, isa: str) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    outputs = native(checkpoint, dtype="float32").generate(PROMPTS, PARAMS, progress=False)
    for ids, output in zip(PROMPTS, outputs, strict=True):
        with torch.inference_mode():
            expected = reference.generate(
                torch.tensor([ids]),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(ids) :].tolist()
        assert output.outputs[0].token_ids == expected


def test_logprobs_are_those_of_transformers(checkpoint: Path, isa: str) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs = native(checkpoint, dtype="float32").generate(PROMPTS, params, progress=False)
    for ids, output in zip(PROMPTS, outputs, strict=True):
        with torch.inference_mode():
            logprobs = torch.log_softmax(reference(torch.tensor([ids])).logits[0], -1)
        expected = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
        actual = [entry.logprob for entry in output.prompt_logprobs[1:]]
        assert actual == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_kv_cache_dtype(tmp_path: Path, isa: str, kv_dtype: str) -> None:
    """Shorter K and V under float32 weights: near, and not the same."""
    write_checkpoint(tmp_path / "m", "llama")
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    exact, rounded = (
        [
            entry.logprob
            for entry in native(tmp_path / "m", dtype="float32", kv_cache_dtype=kv)
            .generate([prompt(60)], params, progress=False)[0]
            .prompt_logprobs[1:]
        ]
        for kv in ("float32", kv_dtype)
    )
    assert exact != rounded
    assert exact == pytest.approx(rounded, abs=0.3)


def test_refusals_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "m", "llama", head_dim=12)
    with pytest.raises(ConfigError, match="head_dim 12"):
        native(tmp_path / "m")
    assert native(tmp_path / "m", kernels="auto").info.attention_backend == "sdpa"
    monkeypatch.setenv("OCTAVO_CPU_ISA", "z80")
    with pytest.raises(ConfigError, match="z80"):
        native(tmp_path / "m")
