"""Every model family against transformers, with tiny random weights in float32."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from support.checkpoints import VOCAB_SIZE, write_checkpoint
from support.decoding import PagedRows, load_model

FAMILIES = {
    "llama": {},
    "llama3": {},
    "smollm2": {},
    "mistral": {"sliding_window": 13},
    "qwen2": {},
    "qwen3": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama, linear rope": {
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}
    },
}
PROMPT_LENS = [1, 15, 16, 17, 31, 32, 33]
NEW_TOKENS = 24


def prompt_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def pair(request, tmp_path_factory):
    """(our model, theirs) from one checkpoint."""
    path = tmp_path_factory.mktemp("checkpoint")
    family = request.param.split()[0].rstrip(",")
    write_checkpoint(path, family, tokenizer=False, **FAMILIES[request.param])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return load_model(path), theirs


def their_greedy(model, prompt: list[int]) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_logits_are_those_of_transformers(pair, backend):
    ours, theirs = pair
    for length in (1, 16, 33):
        with torch.inference_mode():
            expected = theirs(torch.tensor([prompt_of(length)])).logits[0]
        for chunk in (None, 7):
            logits = PagedRows(ours, backend=backend).prompt_logits(prompt_of(length), chunk=chunk)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("length", PROMPT_LENS)
def test_greedy_tokens_are_those_of_transformers(pair, length):
    ours, theirs = pair
    expected = their_greedy(theirs, prompt_of(length))
    assert len(set(expected)) > 3, "a constant output would prove little"
    for chunk, block_size in ((None, 16), (7, 8)):
        rows = PagedRows(ours, block_size=block_size, seed=length)
        assert rows.greedy(prompt_of(length), NEW_TOKENS, chunk=chunk) == expected


@pytest.mark.parametrize("family", ["smollm2", "qwen3"])
def test_bfloat16_stays_close_to_transformers(tmp_path, family):
    write_checkpoint(tmp_path, family, tokenizer=False, dtype=torch.bfloat16)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt_of(33)])).logits[0].float()
        exact = theirs.float()(torch.tensor([prompt_of(33)])).logits[0]
    logits = PagedRows(load_model(tmp_path, dtype=torch.bfloat16)).prompt_logits(prompt_of(33))
    # As far from the exact result as transformers is in the same precision, and not much farther.
    assert (logits - exact).abs().mean() < 1.5 * (expected - exact).abs().mean()
