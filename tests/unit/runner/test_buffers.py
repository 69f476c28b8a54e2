from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.stepping import GREEDY

from octavo.core.errors import ExecutorError
from octavo.core.plan import BlockCopy, NewRequest
from octavo.runner.buffers import RequestTables


def make_tables(**sizes) -> RequestTables:
    defaults = {"max_num_seqs": 2, "max_model_len": 40, "block_size": 16, "vocab_size": 97}
    return RequestTables(**{**defaults, **sizes})


def request(request_id: str = "a", num_tokens: int = 5, block_ids=()) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        token_ids=tuple(range(num_tokens)),
        num_prompt_tokens=min(num_tokens, 4),
        params=GREEDY,
        seed=1,
        block_ids=block_ids,
    )


def test_admitted_request_is_in_the_tables():
    tables = make_tables()
    tables.admit(request(block_ids=(7,)))
    tables.extend_blocks("a", (3, 9))
    seat = tables["a"]
    assert (seat.num_known_tokens, seat.num_prompt_tokens, seat.num_blocks) == (5, 4, 3)
    assert tables.token_ids[seat.index, :5].tolist() == [0, 1, 2, 3, 4]
    assert tables.block_ids[seat.index].tolist() == [7, 3, 9]


def test_appended_token_is_known_to_sampling_too():
    tables = make_tables()
    tables.admit(request())
    seat = tables["a"]
    appended = []
    seat.sampling = SimpleNamespace(append=appended.append)
    tables.append_token(seat, 42)
    assert (seat.num_known_tokens, appended) == (6, [42])
    assert tables.token_ids[seat.index, 5] == 42


def test_last_token_of_a_full_context_is_counted_but_not_kept():
    tables = make_tables()
    tables.admit(request(num_tokens=40))
    tables.append_token(tables["a"], 42)
    assert tables["a"].num_known_tokens == 41


def test_seats_are_used_again():
    tables = make_tables()
    for name in "abcdef":
        tables.admit(request(name))
        tables.release(name)
        assert name not in tables
    tables.release("never seen")
    tables.admit(request("a"))
    tables.admit(request("b"))
    assert {tables["a"].index, tables["b"].index} == {0, 1}


@pytest.mark.parametrize(
    ("admit", "message"),
    [
        (["a", "a"], "admitted twice"),
        (["a", "b", "c"], "all 2 seats"),
    ],
)
def test_admission_that_cannot_be(admit, message):
    tables = make_tables()
    with pytest.raises(ExecutorError, match=message):
        for name in admit:
            tables.admit(request(name))


def test_too_many_tokens_or_blocks():
    tables = make_tables()
    with pytest.raises(ExecutorError, match="41 tokens, more than max_model_len"):
        tables.admit(request(num_tokens=41))
    tables.admit(request())
    with pytest.raises(ExecutorError, match=r"given 4 blocks.*at most 3"):
        tables.extend_blocks("a", (1, 2, 3, 4))


def test_copy_replaces_its_source():
    tables = make_tables()
    tables.admit(request(block_ids=(7, 3)))
    tables.replace_block(BlockCopy("a", 1, 3, 9))
    assert tables.block_ids[tables["a"].index, :2].tolist() == [7, 9]
    for wrong in (BlockCopy("a", 1, 3, 9), BlockCopy("a", 2, 0, 9), BlockCopy("a", -1, 9, 3)):
        with pytest.raises(ExecutorError, match=r"whose blocks are \[7, 9\]"):
            tables.replace_block(wrong)
