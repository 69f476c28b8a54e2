from __future__ import annotations

from octavo.core.config import SchedulerConfig
from octavo.core.params import SamplingParams
from octavo.core.plan import BlockCopy, ScheduledRequest
from octavo.core.request import Request
from octavo.kv.manager import BlockDelta
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.draft import DraftPlan


def draft():
    return DraftPlan(StepBudget(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4)))


def request(name, num_tokens, computed=0):
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(num_tokens)),
        params=SamplingParams(),
        seed=5,
        num_computed_tokens=computed,
    )


def test_rows_take_from_the_budget_and_sample_at_their_last_token():
    d = draft()
    d.add(request("a", 10, computed=9), 1, BlockDelta())
    d.add(request("b", 20), 8, BlockDelta((3, 4)))
    assert d.budget.num_tokens == 23 and len(d) == 2
    plan = d.finish(7, ("gone",))
    assert plan.step_id == 7 and plan.released == ("gone",) and plan.num_tokens == 9
    assert plan.rows == (
        ScheduledRequest("a", 9, 1, (), 0, (), True),
        ScheduledRequest("b", 0, 8, (3, 4), 0, (), False),
    )


def test_a_row_taken_back_leaves_nothing():
    d = draft()
    first, second = BlockCopy("a", 0, 1, 2), BlockCopy("b", 1, 2, 3)
    d.add(request("a", 10, computed=9), 1, BlockDelta((), (first,)))
    d.add(request("b", 10, computed=5), 5, BlockDelta((), (second,)))
    d.take_back("a")
    d.take_back("nobody")
    plan = d.finish(0, ())
    assert d.budget.num_tokens == 27
    assert [row.request_id for row in plan.rows] == ["b"] and plan.copies == (second,)


def test_copies_stay_in_order():
    d = draft()
    copies = [BlockCopy(name, 0, block, block + 1) for block, name in enumerate("abc")]
    for copy in copies:
        d.add(request(copy.request_id, 10, computed=9), 1, BlockDelta((), (copy,)))
    assert d.finish(0, ()).copies == tuple(copies)


def test_the_executor_gets_the_table_of_an_admitted_request_as_it_was_before_copies():
    d = draft()
    copy = BlockCopy("a", 1, 6, 9)
    d.admit(request("a", 10, computed=7), 3, BlockDelta((4,), (copy,)), (5, 9, 4))
    plan = d.finish(0, ())
    (new,) = plan.admitted
    assert new.block_ids == (5, 6) and plan.rows[0].new_block_ids == (4,)
    assert plan.copies == (copy,) and new.token_ids == tuple(range(10)) and new.seed == 5
