from __future__ import annotations

import pytest
from support.engines import Harness
from support.fake_executor import expected_output

from octavo.core.config import SchedulerConfig
from octavo.core.errors import ContextTooLong, InvalidParameter
from octavo.core.request import RequestState


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


def test_whole_prompts_come_first_and_streams_wait():
    h = Harness(max_num_batched_tokens=64, enable_chunked_prefill=False)
    h.add("a", [1] * 4)
    h.step()
    h.add("b", [2] * 40)
    h.add("c", [3] * 40)
    h.add("d", [4] * 20)
    h.step()
    assert rows(h) == [("b", 0, 40)], "c does not fit whole, and d may not pass it"
    h.step()
    assert rows(h) == [("c", 0, 40), ("d", 0, 20)]
    h.step()
    assert [(name, size) for name, _, size in rows(h)] == [(name, 1) for name in "abcd"]
    h.run()
    assert h.outputs["a"] == expected_output([1] * 4, 0, 5)
    assert h.outputs["c"] == expected_output([3] * 40, 0, 5)


def test_whole_prompts_in_little_memory_end_all_the_same():
    h = Harness(
        num_blocks=12, block_size=4, max_num_batched_tokens=64, enable_chunked_prefill=False
    )
    prompts = {str(i): [i] * (5 + i) for i in range(6)}
    for name, prompt in prompts.items():
        h.add(name, prompt, params={"max_tokens": 20})
    h.run()
    for name, prompt in prompts.items():
        assert h.outputs[name] == expected_output(prompt, 0, 20)
    assert all(plan.num_tokens <= 64 for plan in h.executor.plans)


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


def test_a_name_that_is_aborted_twice_ends_once():
    h = Harness()
    h.add("a", [1] * 5)
    h.add("b", [2] * 5)
    h.step()
    h.add("c", [3] * 5)
    h.abort("a", "c", "a", "c")
    h.abort("a")
    h.run()
    assert h.ended["a"].finish_reason == h.ended["c"].finish_reason == "abort"
    assert h.outputs["b"] == expected_output([2] * 5, 0, 5)


def test_the_names_of_all_completions_must_be_free():
    h = Harness()
    h.add("a#1", [1] * 5)
    with pytest.raises(InvalidParameter, match="'a#1' is in use"):
        h.add("a", [2] * 5, params={"n": 2})
    h.scheduler.check_invariants()
    h.run()
    assert list(h.ended) == ["a#1"] and h.outputs["a#1"] == expected_output([1] * 5, 0, 5)


def test_prompts_already_begun_go_on_in_the_order_of_the_policy():
    h = Harness(
        num_blocks=100,
        policy="priority",
        max_num_batched_tokens=16,
        long_prefill_token_threshold=20,
        max_long_partial_prefills=2,
    )
    h.add("low", [1] * 80, priority=5)
    h.add("short", [2] * 4, priority=6, params={"max_tokens": 1})
    h.step()
    assert rows(h) == [("low", 0, 8), ("short", 0, 4)]
    h.add("high", [3] * 40, priority=-1)
    h.add("short too", [4] * 4, priority=6, params={"max_tokens": 1})
    h.step()
    assert [name for name, _, _ in rows(h)] == ["low", "high"]
    h.step()
    assert [name for name, _, _ in rows(h)] == ["high", "low"]


def test_prompt_logprobs_are_told_once_each_and_by_the_first_completion_alone():
    h = Harness(num_blocks=100, block_size=4, max_num_batched_tokens=8)
    prompt = list(range(20))
    h.add("before", prompt)
    h.run()
    h.add("a", prompt, params={"n": 2, "prompt_logprobs": 0})
    h.run()
    assert h.firsts["a"].num_cached_tokens == 0, "the logits of the whole prompt are wanted"
    assert [entry.token_id for entry in h.scores["a"]] == prompt[1:]
    assert h.scores["a#1"] == []
    assert h.outputs["a"] == expected_output(prompt, 0, 5)


def test_a_preempted_request_comes_back_with_all_its_tokens():
    h = Harness(num_blocks=6, block_size=4, max_model_len=24)
    h.add("a", [1] * 7, params={"max_tokens": 12})
    h.add("b", [2] * 7, params={"max_tokens": 12, "prompt_logprobs": 0})
    h.run()
    times = [new for plan in h.executor.plans for new in plan.admitted if new.request_id == "b"]
    assert len(times) > 1, "b was never preempted"
    for new in times[1:]:
        known = len(new.token_ids)
        assert known > 7 and new.num_prompt_tokens == 7
        assert list(new.token_ids) == ([2] * 7 + expected_output([2] * 7, 0, 12))[:known]
    assert len(h.scores["b"]) == 6


def test_a_completion_with_tokens_of_its_own_does_not_fork_again():
    h = Harness(num_blocks=7, block_size=4, max_model_len=28)
    h.add("a", [1] * 7, params={"n": 2, "max_tokens": 15})
    h.run()
    again = [new for plan in h.executor.plans for new in plan.admitted if new.request_id == "a#1"]
    assert len(again) > 1 and len(again[-1].token_ids) > 7
    assert h.outputs["a"] == expected_output([1] * 7, 0, 15)
    assert h.outputs["a#1"] == expected_output([1] * 7, 1, 15)


@pytest.mark.parametrize("parent", ["preempted", "failed", "finished"])
def test_completions_are_served_whatever_becomes_of_the_first(parent):
    options, limits, tokens = {}, {"num_blocks": 20}, 3
    if parent == "failed":
        options = {"row_fails": lambda row: row.request_id == "a"}
    if parent == "finished":
        tokens = 1
    if parent == "preempted":
        limits = {"num_blocks": 6}
    h = Harness(block_size=4, max_num_batched_tokens=8, executor_options=options, **limits)
    h.add("other", [9] * 7, params={"max_tokens": 10})
    h.step()
    h.add("a", [1] * 14, params={"n": 3, "max_tokens": tokens})
    h.run()
    assert h.ended["a"].finish_reason == ("error" if parent == "failed" else "length")
    for index in (1, 2):
        assert h.outputs[f"a#{index}"] == expected_output([1] * 14, index, tokens)
    assert h.outputs["other"] == expected_output([9] * 7, 0, 10)


def test_who_fails_before_the_executor_hears_is_released_all_the_same():
    h = Harness(max_num_seqs=1, executor_options={"submit_fails": lambda plan: plan.step_id == 2})
    h.add("a", [1] * 5, params={"max_tokens": 2})
    for name in "bc":
        h.add(name, [2] * 5)
    h.run()
    assert h.ended["b"].finish_reason == "error" and "at once" in h.ended["b"].error
    assert h.ended["a"].finish_reason == h.ended["c"].finish_reason == "length"
    assert h.executor.request_ids == {"c"}, "only the last is still to be released"


def test_a_fork_that_finds_no_block_waits():
    h = Harness(num_blocks=5, block_size=4, max_num_batched_tokens=32, max_model_len=20)
    h.add("a", [1] * 16, params={"n": 2, "max_tokens": 3})
    h.step()
    h.step()
    assert [name for name, _, _ in rows(h)] == ["a"], "the last free block went to the first"
    h.run()
    assert h.outputs["a#1"] == expected_output([1] * 16, 1, 3)


def test_a_request_whose_tokens_have_outgrown_all_blocks_while_it_waited_ends():
    h = Harness(num_blocks=4, block_size=4, max_model_len=100)
    request = h.add("a", [1] * 15, params={"max_tokens": 9})
    request.output_token_ids += expected_output([1] * 15, 0, 2)
    h.run()
    assert h.ended["a"].finish_reason == "length"


def test_two_that_do_not_fit_together_do_not_fight_for_ever():
    h = Harness(num_blocks=8, block_size=4, max_model_len=32)
    for name, token in (("a", 1), ("b", 2), ("c", 3)):
        h.add(name, [token] * 15, params={"max_tokens": 16})
    assert h.run(max_steps=200) < 100
    for name, token in (("a", 1), ("b", 2), ("c", 3)):
        assert h.outputs[name] == expected_output([token] * 15, 0, 16)


def test_a_stream_of_short_requests_does_not_starve_a_long_one():
    h = Harness(num_blocks=12, block_size=4, max_num_seqs=3, long_prefill_token_threshold=8)
    h.add("holder", [5] * 20, params={"max_tokens": 4})
    h.step()
    h.add("long", [1] * 40, params={"max_tokens": 2})
    for number in range(200):
        h.add(f"s{number}", [2] * 6, params={"max_tokens": 2})
        h.step()
        if "long" in h.ended:
            break
    assert "long" in h.ended
    h.run()


def test_nobody_is_admitted_in_a_step_in_which_someone_lost_blocks():
    # A first piece of the long one would fit at once into what it has just lost.
    h = Harness(num_blocks=12, block_size=4, max_num_batched_tokens=8, caching=False)
    h.add("a", [1] * 7, params={"max_tokens": 35})
    h.add("long", [2] * 20, params={"max_tokens": 20})
    num_preemptions = 0
    while h.engine.has_work:
        stats = h.step()
        num_preemptions += stats.num_preemptions
        assert not (stats.num_preemptions and h.executor.plans[-1].admitted)
    assert num_preemptions
    assert h.outputs["long"] == expected_output([2] * 20, 0, 20)


def test_what_was_cached_is_what_was_cached_at_first():
    h = Harness(num_blocks=6, block_size=4, max_model_len=24)
    h.add("a", [1] * 7, params={"max_tokens": 12})
    request = h.add("b", [2] * 7, params={"max_tokens": 12})
    h.step()
    began = request.first_scheduled_s
    h.run()
    again = [new for plan in h.executor.plans for new in plan.admitted if new.request_id == "b"]
    assert request.num_preemptions and again[-1].block_ids, "it was resumed from the cache"
    assert request.num_cached_tokens == 0 and request.first_scheduled_s == began


def misfile(h):
    h.scheduler._waiting._requests.clear()
    h.scheduler._waiting._ranks.clear()


def file_twice(h):
    running = h.scheduler._running["a"]
    h.scheduler._waiting.insert(running, h.scheduler._ranks["a"])


def lose_rank(h):
    del h.scheduler._ranks["a"]


def run_too_many(h):
    h.scheduler._config = SchedulerConfig(max_num_seqs=1)


def wrong_state(h):
    h.scheduler._running["a"].state = RequestState.WAITING


def waits_with_tokens(h):
    next(iter(h.scheduler._waiting)).num_computed_tokens = 3


def no_room(h):
    h.scheduler._running["a"].num_computed_tokens = 1000


def nothing_to_do(h):
    h.scheduler._running["a"].num_computed_tokens += 1


def broken_blocks(h):
    h.blocks._pool.num_free += 1


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (misfile, r"places where they may be disagree: \['c'\]"),
        (file_twice, "a request is in two"),
        (lose_rank, "requests and ranks disagree"),
        (run_too_many, "2 requests run, more than max_num_seqs"),
        (wrong_state, "a is waiting, but runs=True"),
        (waits_with_tokens, "c waits with 0 slots and 3 tokens"),
        (no_room, "a has 1000 computed tokens in 8 slots"),
        (nothing_to_do, "a runs, but has nothing left to compute"),
        (broken_blocks, "num_free"),
    ],
)
def test_check_invariants_finds_corruption(corrupt, complaint):
    h = Harness(max_num_seqs=2)
    for name in "abc":
        h.add(name, [1] * 5)
    h.step()
    h.scheduler.check_invariants()
    corrupt(h)
    with pytest.raises(AssertionError, match=complaint):
        h.scheduler.check_invariants()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_step_brings_for_an_aborted_request_is_dropped(fails, again):
    h = Harness(block_size=4)
    h.add("a", [1] * 5)
    h.add("b", [2] * 5)
    plan = h.scheduler.schedule()
    h.executor.submit(plan)
    h.abort("a")
    if again:  # the same name, another request
        del h.ended["a"]
        h.add("a", [3] * 7)
    if fails:
        h.take(h.scheduler.fail(plan, "told to fail"))
    else:
        h.take(h.scheduler.commit(plan, h.executor.collect()))
    h.scheduler.check_invariants()
    assert h.outputs["a"] == []
    if fails:
        assert h.ended["b"].finish_reason == "error"
        assert ("a" in h.ended) != again
        return
    h.run()
    if again:
        assert h.outputs["a"] == expected_output([3] * 7, 0, 5)
    assert h.outputs["b"] == expected_output([2] * 5, 0, 5)
