from __future__ import annotations

import pytest
from support.engines import Harness
from support.fake_executor import expected_output

from octavo.core.errors import ContextTooLong
from octavo.engine.core import Engine


def test_a_step_is_timed_and_counted():
    h = Harness(block_size=4)
    h.add("a", [1] * 6, params={"max_tokens": 2})
    deltas, stats = h.engine.step()
    # The clock ticks once at each reading; the scheduler reads it once when it
    # begins and once for an admission, and the commit reads it once.
    assert (stats.schedule_s, stats.commit_s) == (3.0, 2.0)
    assert (stats.step_id, stats.num_rows, stats.num_running, stats.num_waiting) == (0, 1, 1, 0)
    assert (stats.num_prompt_tokens, stats.num_generated_tokens) == (6, 1)
    assert stats.cache.num_used_blocks == 2
    assert [delta.new_token_ids for delta in deltas] == [tuple(expected_output([1] * 6, 0, 1))]


def test_stats_without_a_step_count_nothing_and_keep_the_last_number():
    h = Harness()
    assert h.engine.stats().step_id == -1
    h.add("a", [1] * 3)
    h.step()
    stats = h.engine.stats()
    assert (stats.step_id, stats.num_rows, stats.num_running) == (0, 0, 1)
    assert (stats.num_generated_tokens, stats.schedule_s) == (0, 0.0)


def test_a_step_without_work_is_none():
    h = Harness()
    assert not h.engine.has_work
    deltas, stats = h.engine.step()
    assert deltas == [] and stats.num_rows == 0 and h.executor.plans == []


def test_what_can_never_fit_is_refused_and_leaves_nothing():
    h = Harness(max_model_len=10)
    with pytest.raises(ContextTooLong):
        h.add("a", [1] * 10)
    assert not h.engine.has_work


def test_all_can_be_aborted():
    h = Harness(max_num_seqs=1)
    h.add("a", [1] * 3, params={"n": 2})
    h.add("b", [1] * 3)
    h.step()
    h.take(h.engine.abort_all())
    assert set(h.ended) == {"a", "a#1", "b"} and not h.engine.has_work
    assert h.blocks.stats().num_used_blocks == 0


@pytest.mark.parametrize("when", ["step_fails", "submit_fails"])
def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(when):
    h = Harness(max_num_seqs=2, executor_options={when: lambda plan: plan.step_id == 1})
    for name in "abcd":
        h.add(name, [1, 2, 3])
    h.step()
    stats = h.step()
    assert {name: end.finish_reason for name, end in h.ended.items()} == {
        "a": "error",
        "b": "error",
    }
    assert stats.commit_s == 0.0 and stats.num_running == 0
    assert h.blocks.stats().num_used_blocks == 0
    h.run()
    assert h.outputs["c"] == h.outputs["d"] == expected_output([1, 2, 3], 0, 5)


def test_the_prefix_cache_can_be_reset_while_requests_run():
    h = Harness(block_size=4)
    h.add("a", list(range(9)))
    h.step()
    h.engine.reset_prefix_cache()
    h.add("b", list(range(9)))
    h.run()
    assert h.firsts["b"].num_cached_tokens == 0
    assert h.outputs["b"] == expected_output(list(range(9)), 0, 5)


@pytest.mark.parametrize("check", [True, False])
def test_invariants_are_checked_if_wanted(check):
    h = Harness()
    engine = Engine(h.scheduler, h.executor, clock=h.clock, check_invariants=check)
    h.add("a", [1] * 5)
    engine.step()
    h.blocks._num_cached += 1
    if not check:
        engine.step()
        return
    with pytest.raises(AssertionError, match="are cached, but"):
        engine.step()
