"""Weights of 8 and 4 bits, rounded on load or stored so: near the model that they stand for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import GGUF_FAMILIES, VOCAB_SIZE, write_checkpoint, write_gguf

from octavo import LLM, SamplingParams
from octavo.core.errors import ConfigError
from octavo.kernels.native import instruction_sets

pytestmark = pytest.mark.skipif(
    not instruction_sets(), reason="octavo-native is not installed: no compiler was found"
)

PROMPT = [3 + 37 * i % (VOCAB_SIZE - 3) for i in range(70)]
SCORES = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)


def llm_of(path: Path | str, **options: Any) -> LLM:
    return LLM(str(path), **{"num_blocks": 64, "max_model_len": 256, **options})


def logprobs(llm: LLM, prompt: list[int] = PROMPT) -> list[float]:
    [output] = llm.generate([prompt], SCORES, progress=False)
    return [entry.logprob for entry in output.prompt_logprobs[1:]]


def distance(left: list[float], right: list[float]) -> float:
    """Root mean square of the differences."""
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(left, right, strict=True)) / len(left))


@pytest.mark.parametrize("family", GGUF_FAMILIES)
@pytest.mark.parametrize("stored", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_stored_integers_are_the_values_of_the_file(
    tmp_path: Path, family: str, stored: str
) -> None:
    path = tmp_path / "m.gguf"
    heads = {"num_attention_heads": 8} if stored.endswith("_K") and family == "qwen3" else {}
    write_gguf(path, family, quantization=stored, **heads)
    integers = llm_of(path)
    assert integers.info.quantization == stored
    floats = llm_of(path, dtype="float32")
    assert floats.info.quantization == "none"
    assert integers.info.cache_plan.memory.weight_bytes < floats.info.cache_plan.memory.weight_bytes
    # What remains is the rounding of activations to 8 bits.
    assert distance(logprobs(integers), logprobs(floats)) < 0.35


@pytest.mark.parametrize(("name", "near"), [("int8", 0.2), ("int4", 2.0)])
def test_rounded_on_load(tmp_path: Path, name: str, near: float) -> None:
    write_checkpoint(tmp_path / "m", "qwen2")
    exact = logprobs(llm_of(tmp_path / "m", dtype="float32"))
    rounded = llm_of(tmp_path / "m", quantization=name)
    assert rounded.info.quantization == name
    assert 0 < distance(logprobs(rounded), exact) < near


def test_the_real_model_stays_itself() -> None:
    text = (
        "We the People of the United States, in Order to form a more perfect Union, establish "
        "Justice, insure domestic Tranquility, provide for the common defence, promote the general "
        "Welfare, and secure the Blessings of Liberty to ourselves and our Posterity, do ordain "
        "and establish this Constitution for the United States of America. Every volume on the "
        "shelf was bound in grey cloth, and nobody in the village could say who had read them last."
    )
    found = []
    for options in ({"dtype": "bfloat16"}, {"quantization": "int8"}, {}):
        llm = llm_of("smollm2", **options)
        found.append(logprobs(llm, llm.tokenizer.encode(text)))
    plain, int8, stored = found
    assert 0 < distance(int8, plain) < 0.3
    assert 0 < distance(stored, plain) < 0.3


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", "llama")
    for options in ({"quantization": "int8"}, {"kv_cache_dtype": "int8"}):
        with pytest.raises(ConfigError, match="int8 needs the native CPU kernels"):
            llm_of(tmp_path / "m", kernels="torch", **options)
    write_checkpoint(tmp_path / "odd", "llama", intermediate_size=72)
    with pytest.raises(ConfigError, match="rows of 72 values"):
        llm_of(tmp_path / "odd", quantization="int4")
