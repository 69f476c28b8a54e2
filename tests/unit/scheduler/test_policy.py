from __future__ import annotations

import pytest

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.scheduler.policy import POLICIES


@pytest.mark.parametrize(("name", "expected"), [("fcfs", "abcd"), ("priority", "cabd")])
def test_rank(name, expected):
    fields = {"a": (0, 1.0), "b": (0, 2.0), "c": (-1, 2.0), "d": (7, 2.0)}
    ranks = {}
    for number, (who, (priority, arrival)) in enumerate(fields.items()):
        request = Request(
            request_id=who,
            prompt_token_ids=(1,),
            params=SamplingParams(),
            seed=0,
            priority=priority,
            arrival_s=arrival,
        )
        ranks[who] = POLICIES[name](request, number)
    assert "".join(sorted(ranks, key=ranks.__getitem__)) == expected
    assert len(set(ranks.values())) == len(ranks)
