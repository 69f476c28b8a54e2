from __future__ import annotations

import pytest
from support.engines import Harness
from support.fake_executor import expected_output

from octavo.core.errors import ContextTooLong, InvalidParameter


def rows(harness):
    return [
        (row.request_id, row.start, row.num_new_tokens) for row in harness.executor.plans[-1].rows
    ]


def test_decodes_come_first_and_prompts_take_the_rest():
    h = Harness(max_num_batched_tokens=10, max_num_seqs=8)
    h.add("a", [1] * 4)
    h.step()
    h.add("b", [2] * 30)
    h.step()
    assert rows(h) == [("a", 4, 1), ("b", 0, 9)]
    h.step()
    assert rows(h) == [("a", 5, 1), ("b", 9, 9)]
    assert not h.executor.plans[-1].rows[1].wants_sample


def test_fcfs_and_the_sequence_limit():
    h = Harness(max_num_seqs=2)
    for name in "abc":
        h.add(name, [1, 2], params={"max_tokens": 2})
    h.step()
    assert [name for name, _, _ in rows(h)] == ["a", "b"]
    assert h.scheduler.num_waiting == 1
    h.run()
    assert set(h.ended) == set("abc")


def test_priority():
    h = Harness(max_num_seqs=1, policy="priority")
    h.add("late", [1, 2], priority=5)
    h.add("early", [1, 2], priority=-1)
    h.add("middle", [1, 2])
    h.run()
    assert list(h.ended) == ["early", "middle", "late"]


def test_the_last_by_policy_is_preempted_and_comes_back():
    h = Harness(num_blocks=6, block_size=4, max_model_len=24)
    h.add("a", [1] * 7, params={"max_tokens": 12})
    h.add("b", [2] * 7, params={"max_tokens": 12})
    while h.scheduler.counters.num_preemptions == 0 and not any(
        "b" in plan.released for plan in h.executor.plans
    ):
        h.step()
    h.run()
    assert not any("a" in plan.released for plan in h.executor.plans[:-1] if "b" in plan.released)
    assert h.outputs["a"] == expected_output([1] * 7, 0, 12)
    assert h.outputs["b"] == expected_output([2] * 7, 0, 12)
    assert h.firsts["b"].num_cached_tokens == 0
    assert [name for name in h.ended] == ["a", "b"]


def test_a_lone_request_that_outgrows_the_pool_ends_with_length():
    h = Harness(num_blocks=3, block_size=4, max_model_len=100)
    h.add("a", [1] * 5, params={"max_tokens": 50})
    h.run()
    assert h.ended["a"].finish_reason == "length"
    assert len(h.outputs["a"]) == 8, "12 slots, and the last token needs none"


def test_refusal_at_the_door():
    h = Harness(num_blocks=4, block_size=4, max_model_len=100)
    with pytest.raises(ContextTooLong, match="holds 16"):
        h.add("a", [1] * 16)
    h.add("a", [1] * 15)
    with pytest.raises(InvalidParameter, match="in use"):
        h.add("a", [1])
    with pytest.raises(InvalidParameter, match="empty"):
        h.add("b", [])
    wide = Harness(max_model_len=10)
    with pytest.raises(ContextTooLong, match="9 tokens or less"):
        wide.add("a", [1] * 10)
    wide.add("a", [1] * 9)
    wide.run()
    assert wide.ended["a"].finish_reason == "length" and len(wide.outputs["a"]) == 1


def test_short_prompts_pass_a_long_one():
    h = Harness(
        num_blocks=100, max_num_batched_tokens=16, max_num_seqs=8, long_prefill_token_threshold=20
    )
    h.add("long", [1] * 100)
    h.add("other long", [2] * 100)
    h.add("short", [3] * 5)
    h.step()
    assert rows(h) == [("long", 0, 8), ("short", 0, 5)]


def test_a_long_prompt_is_not_held_back_for_others_that_are_long():
    h = Harness(num_blocks=100, max_num_batched_tokens=16, long_prefill_token_threshold=20)
    h.add("long", [1] * 100)
    h.add("other long", [2] * 100)
    h.step()
    assert rows(h) == [("long", 0, 16)]


def test_a_long_prompt_that_is_cached_is_short():
    h = Harness(num_blocks=100, max_num_batched_tokens=64, long_prefill_token_threshold=20)
    shared = list(range(40))
    h.add("first", shared)
    h.run()
    for name in ("a", "b", "c"):
        h.add(name, [*shared, 7], params={"max_tokens": 3})
    h.step()
    assert rows(h) == [("a", 40, 1), ("b", 40, 1), ("c", 40, 1)]


def test_a_long_prompt_alone_takes_the_whole_step():
    h = Harness(num_blocks=100, max_num_batched_tokens=16, long_prefill_token_threshold=20)
    h.add("long", [1] * 100)
    h.step()
    assert rows(h) == [("long", 0, 16)]


def test_completions_fork_from_the_first():
    h = Harness(num_blocks=20, block_size=4)
    h.add("a", [1] * 10, params={"n": 3, "max_tokens": 3}, seed=5)
    h.step()
    assert h.scheduler.num_waiting == 2
    h.step()
    assert rows(h) == [("a", 10, 1), ("a#1", 9, 1), ("a#2", 9, 1)]
    # The first to write the shared last block copies it; the last one has it to itself.
    assert len(h.executor.plans[-1].copies) == 2
    h.run()
    for index, name in enumerate(("a", "a#1", "a#2")):
        assert h.outputs[name] == expected_output([1] * 10, 5 + index, 3)


@pytest.mark.parametrize("when", [0, 1, 2])
def test_completions_survive_the_abort_of_the_first(when):
    h = Harness(max_num_batched_tokens=4, max_num_seqs=4)
    h.add("a", [1] * 10, params={"n": 3, "max_tokens": 3})
    for _ in range(when):
        h.step()
    h.abort("a")
    h.run()
    assert h.ended["a"].finish_reason == "abort"
    assert h.outputs["a#1"] == expected_output([1] * 10, 1, 3)
    assert h.outputs["a#2"] == expected_output([1] * 10, 2, 3)


def test_aborts_free_at_once_wherever_the_request_is():
    h = Harness(max_num_seqs=1)
    h.add("running", [1] * 9, params={"n": 2})
    h.add("waiting", [2] * 9)
    h.step()
    used = h.blocks.stats().num_used_blocks
    assert used > 0
    h.abort("running#1", "waiting", "running", "nobody")
    assert h.blocks.stats().num_used_blocks == 0 and not h.engine.has_work
    assert {end.finish_reason for end in h.ended.values()} == {"abort"}
    h.add("next", [3] * 3)
    h.run()
    assert h.executor.plans[1].released == ("running",)


def test_a_failing_row_ends_alone():
    h = Harness(executor_options={"row_fails": lambda row: row.request_id == "bad"})
    for name in ("good", "bad", "fine"):
        h.add(name, [1, 2, 3])
    h.run()
    assert h.ended["bad"].finish_reason == "error" and h.ended["bad"].error == "told to fail"
    assert h.outputs["good"] == h.outputs["fine"] == expected_output([1, 2, 3], 0, 5)


def test_a_failing_step_ends_its_rows_and_no_others():
    h = Harness(max_num_seqs=1, executor_options={"step_fails": lambda plan: plan.step_id == 1})
    h.add("a", [1, 2, 3])
    h.add("b", [1, 2, 3])
    h.run()
    assert h.ended["a"].finish_reason == "error" and "step 1" in h.ended["a"].error
    assert h.outputs["b"] == expected_output([1, 2, 3], 0, 5)


def test_cached_tokens_are_told_once():
    h = Harness(block_size=4)
    h.add("a", list(range(10)))
    h.run()
    h.add("b", list(range(10)))
    h.run()
    assert h.firsts["a"].num_cached_tokens == 0 and h.firsts["b"].num_cached_tokens == 8
    assert h.firsts["b"].queue_s > 0


def test_stats_count_what_happened():
    h = Harness(max_num_batched_tokens=8, max_num_seqs=4)
    h.add("a", list(range(12)), params={"max_tokens": 3})
    all_stats = []
    while h.engine.has_work:
        all_stats.append(h.step())
    assert [s.num_prompt_tokens for s in all_stats] == [8, 4, 0, 0]
    assert [s.num_generated_tokens for s in all_stats] == [0, 1, 1, 1]
    assert all_stats[0].num_prefix_queries == 12 and all_stats[-1].num_running == 0


def test_a_hundred_waiting_requests_all_end():
    h = Harness(num_blocks=10, max_num_seqs=4)
    for number in range(100):
        h.add(f"r{number}", [number % 7] * (1 + number % 20))
    h.run()
    assert len(h.ended) == 100
