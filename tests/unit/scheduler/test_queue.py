from __future__ import annotations

import pytest

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.scheduler.policy import fcfs, priority
from octavo.scheduler.queue import WaitingLine


def request(name, arrival, rank=0):
    return Request(
        request_id=name,
        prompt_token_ids=(1,),
        params=SamplingParams(),
        seed=0,
        arrival_s=arrival,
        priority=rank,
    )


@pytest.mark.parametrize(("policy", "expected"), [(fcfs, "bac"), (priority, "cba")])
def test_order(policy, expected):
    line = WaitingLine()
    for number, r in enumerate([request("a", 2), request("b", 1), request("c", 3, rank=-1)]):
        line.insert(r, policy(r, number))
    assert "".join(r.request_id for r in line) == expected
    assert len(line) == 3


def test_remove_checks_who_stands_there():
    line = WaitingLine()
    a = request("a", 1)
    line.insert(a, fcfs(a, 0))
    with pytest.raises(AssertionError, match="a stands where"):
        line.remove("b", fcfs(a, 0))
    line.remove("a", fcfs(a, 0))
    assert len(line) == 0


def misplaced(line):
    line._ranks.reverse()
    line._requests.reverse()


def rank_lost(line):
    line._ranks.pop()


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [(misplaced, "not in the order"), (rank_lost, "2 requests wait with 1 ranks")],
)
def test_check_finds_corruption(corrupt, complaint):
    line = WaitingLine()
    for number, name in enumerate("ab"):
        r = request(name, number)
        line.insert(r, fcfs(r, number))
    assert line.check() == ["a", "b"]
    corrupt(line)
    with pytest.raises(AssertionError, match=complaint):
        line.check()
