"""Requests that want no output: they end with their prompt, by the same steps as all others."""

from __future__ import annotations

import pytest
from support.engines import Harness

from octavo.core.errors import ContextTooLong

PROMPT = list(range(20))


@pytest.mark.parametrize("tokens", [4, 7, 64])
def test_it_ends_with_its_prompt_and_without_a_token(tokens):
    h = Harness(max_num_batched_tokens=tokens, max_num_seqs=4)
    h.add("a", PROMPT, params={"max_tokens": 0, "prompt_logprobs": 0})
    assert h.run() == -(-len(PROMPT) // tokens)
    assert h.outputs["a"] == []
    assert h.ended["a"].finish_reason == "length"
    assert [entry.token_id for entry in h.scores["a"]] == PROMPT[1:]
    assert all(not row.wants_sample for plan in h.executor.plans for row in plan.rows)


def test_its_first_and_only_delta_says_how_it_began():
    h = Harness(block_size=4)
    h.add("before", PROMPT)
    h.run()
    h.add("a", PROMPT, params={"max_tokens": 0})
    h.run()
    assert h.firsts["a"] is h.ended["a"]
    assert h.ended["a"].num_cached_tokens == 16, "all but what the last block needs"
    assert h.ended["a"].queue_s > 0


def test_its_blocks_serve_those_who_come_after():
    h = Harness(block_size=4)
    h.add("a", PROMPT, params={"max_tokens": 0, "pooling": "mean"})
    h.run()
    h.add("b", PROMPT)
    h.run()
    assert h.firsts["b"].num_cached_tokens == 16


def test_it_may_fill_context_and_cache():
    h = Harness(num_blocks=5, block_size=4, max_model_len=20)
    h.add("a", PROMPT, params={"max_tokens": 0})
    with pytest.raises(ContextTooLong, match="to 20 tokens or less"):
        h.add("b", [*PROMPT, 1], params={"max_tokens": 0})
    with pytest.raises(ContextTooLong, match="to 19 tokens or less"):
        h.add("c", PROMPT, params={"max_tokens": 1})
    h.run()
    assert h.ended["a"].finish_reason == "length"


def test_several_completions_of_nothing():
    h = Harness()
    h.add("a", PROMPT, params={"max_tokens": 0, "n": 3})
    h.run()
    assert {name: delta.finish_reason for name, delta in h.ended.items()} == {
        "a": "length",
        "a#1": "length",
        "a#2": "length",
    }


def test_a_mean_takes_nothing_from_the_cache_and_the_last_state_does():
    h = Harness(block_size=4)
    h.add("before", PROMPT)
    h.run()
    for kind, cached, pooled in (("mean", 0, PROMPT), ("last", 16, PROMPT[-1:])):
        h.add(kind, PROMPT, params={"max_tokens": 0, "pooling": kind})
        h.run()
        assert h.firsts[kind].num_cached_tokens == cached
        assert h.embeddings[kind] == bytes(pooled)


def test_an_embedding_beside_an_output_is_told_once_whatever_is_computed_again():
    h = Harness(num_blocks=6, block_size=4, max_model_len=24)
    h.add("a", [1] * 7, params={"max_tokens": 12})
    h.add("b", list(range(7)), params={"max_tokens": 12, "pooling": "mean", "n": 1})
    h.run()
    admitted = [new for plan in h.executor.plans for new in plan.admitted if new.request_id == "b"]
    assert len(admitted) > 1, "b was never preempted"
    assert h.embeddings == {"b": bytes(range(7))}
    assert admitted[-1].block_ids, "nothing more is wanted of its prompt: the cache serves it"


def test_a_mean_that_is_preempted_in_its_prompt_begins_again():
    h = Harness(
        num_blocks=6, block_size=4, max_model_len=24, max_num_batched_tokens=8, max_num_seqs=4
    )
    h.add("a", [1] * 7, params={"max_tokens": 12})
    h.step()
    h.add("b", list(range(14)), params={"max_tokens": 0, "pooling": "mean"})
    h.run()
    starts = [row.start for plan in h.executor.plans for row in plan.rows if row.request_id == "b"]
    assert h.embeddings["b"] == bytes(range(14))
    assert starts[0] == 0
