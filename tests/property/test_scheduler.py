"""Any load on a whole engine: every request ends, with the tokens that it would have had alone."""

from __future__ import annotations

import random

import pytest
from support.engines import Harness
from support.fake_executor import expected_output

from octavo.core.errors import RequestError
from octavo.core.request import fork_id


@pytest.mark.parametrize("seed", range(150))
def test_random_load(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 8])
    max_num_seqs = rng.choice([1, 2, 5, 16])
    failing = rng.random() < 0.3
    is_chunked = rng.random() < 0.85
    step_tokens = rng.choice([1, 3, 16, 64]) if is_chunked else 64
    harness = Harness(
        num_blocks=rng.choice([6, 12, 30, 100]),
        block_size=block_size,
        max_model_len=rng.choice([20, 60]),
        caching=rng.random() < 0.8,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, step_tokens),
        enable_chunked_prefill=is_chunked,
        target_itl_ms=rng.choice([None, 10.0, 10_000.0]) if is_chunked else None,
        policy=rng.choice(["fcfs", "priority"]),
        long_prefill_token_threshold=rng.choice([0, 4, 1024]),
        max_long_partial_prefills=rng.choice([1, 2]),
        executor_options={
            "row_fails": lambda row: failing and rng.random() < 0.01,
            "step_fails": lambda plan: failing and rng.random() < 0.01,
            "submit_fails": lambda plan: failing and rng.random() < 0.01,
        },
    )
    shared = [rng.randrange(50) for _ in range(40)]
    wanted, alive, scoring, pooling = {}, [], set(), {}
    for number in range(rng.choice([5, 20, 60])):
        for _ in range(rng.choice([0, 0, 1, 4])):
            harness.step()
            if rng.random() < 0.03 and alive:
                harness.abort(*rng.choices(alive, k=2))
        prompt = shared[: rng.randrange(20)] + [
            rng.randrange(50) for _ in range(rng.randrange(1, 25))
        ]
        n, count, request_seed = (
            rng.choice([1, 1, 1, 2, 4]),
            rng.randrange(12),
            rng.randrange(1000),
        )
        name = f"r{number}"
        try:
            request = harness.add(
                name,
                prompt,
                params={
                    "max_tokens": count,
                    "n": n,
                    "prompt_logprobs": 0 if rng.random() < 0.2 else None,
                    "pooling": rng.choice([None, None, None, "mean", "last"]),
                },
                seed=request_seed,
                priority=rng.randrange(3),
                cache_salt=rng.choice(["", "", "x"]),
            )
        except RequestError:
            continue
        for index in range(n):
            wanted[fork_id(name, index)] = (prompt, request_seed + index, count)
            alive.append(fork_id(name, index))
        if request.params.prompt_logprobs is not None:
            scoring.add(name)
        pooling[name] = request.params.pooling
        if rng.random() < 0.1 and alive:
            harness.abort(rng.choice(alive), "unknown")
    harness.run()
    assert set(harness.ended) == set(wanted)
    for name, (prompt, request_seed, count) in wanted.items():
        output, end = harness.outputs[name], harness.ended[name]
        assert output == expected_output(prompt, request_seed, len(output)), name
        if end.finish_reason == "length":
            room = harness.scheduler.max_model_len - len(prompt)
            capacity = harness.blocks.num_blocks * block_size - len(prompt) + 1
            assert len(output) == min(count, room, capacity) or len(output) == min(count, room)
        else:
            assert end.finish_reason == "abort" or (failing and end.finish_reason == "error")
        scored = [entry.token_id for entry in harness.scores[name]]
        assert scored == prompt[1 : 1 + len(scored)], "a score twice, or out of order"
        if end.finish_reason == "length" and name in scoring:
            assert len(scored) == len(prompt) - 1
        pooled = harness.embeddings.get(name)
        kind = pooling.get(name)  # of the first completion of a request
        assert pooled in (None, bytes(prompt if kind == "mean" else prompt[-1:]))
        if end.finish_reason == "length":
            assert (pooled is not None) == (kind is not None)
        first = harness.firsts[name]
        if output:
            assert first.num_cached_tokens is not None and first.queue_s >= 0
