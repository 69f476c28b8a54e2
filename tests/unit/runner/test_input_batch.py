from __future__ import annotations

import pytest
from support.stepping import GREEDY

from octavo.core.errors import ExecutorError
from octavo.core.plan import NewRequest, ScheduledRequest
from octavo.runner.buffers import RequestTables
from octavo.runner.input_batch import make_batch, prompt_targets

BLOCK = 4


@pytest.fixture
def tables():
    tables = RequestTables(max_num_seqs=3, max_model_len=20, block_size=BLOCK, vocab_size=1000)
    for name, first, count, blocks in (
        ("a", 100, 3, (5,)),
        ("b", 200, 10, (2, 0, 7)),
        ("c", 300, 6, (9, 1)),
    ):
        tables.admit(
            NewRequest(
                request_id=name,
                token_ids=tuple(range(first, first + count)),
                num_prompt_tokens=5,
                params=GREEDY,
                seed=0,
                block_ids=blocks,
            )
        )
    return tables


def test_rows_become_packed_arrays(tables):
    rows = [
        ScheduledRequest("c", 3, 3),
        ScheduledRequest("b", 9, 1),
        ScheduledRequest("a", 0, 2, wants_sample=False),
    ]
    batch = make_batch(rows, tables, BLOCK)
    assert batch.token_ids.tolist() == [303, 304, 305, 209, 100, 101]
    assert batch.positions.tolist() == [3, 4, 5, 9, 0, 1]
    assert batch.layout.slots.tolist() == [39, 4, 5, 29, 20, 21]
    assert batch.layout.query_starts.tolist() == [0, 3, 4, 6]
    assert batch.layout.query_lens.tolist() == [3, 1, 2]
    assert batch.layout.context_lens.tolist() == [6, 10, 2]
    assert batch.layout.block_tables[:, :3].tolist()[1] == [2, 0, 7]
    assert batch.layout.block_tables.tolist()[0][:2] == [9, 1]
    assert batch.sampled_rows == (0, 1)
    assert [*batch.sampled_tokens(0, 0), *batch.sampled_tokens(1, 0)] == [2, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ScheduledRequest("a", 1, 3), "tokens 1 to 4 of request 'a', which has 3"),
        (ScheduledRequest("a", 1, 0), "tokens 1 to 1"),
        (ScheduledRequest("nobody", 0, 1), "'nobody', never admitted"),
    ],
)
def test_rows_that_cannot_be(tables, row, message):
    with pytest.raises(ExecutorError, match=message):
        make_batch([row], tables, BLOCK)


def test_row_without_blocks(tables):
    tables["b"].num_blocks = 2
    with pytest.raises(ExecutorError, match="up to 9 of request 'b', whose 2 blocks hold 8"):
        make_batch([ScheduledRequest("b", 8, 1)], tables, BLOCK)


@pytest.mark.parametrize(
    ("start", "count", "targets"),
    [
        (0, 2, [1, 2]),
        (2, 2, [3, 4]),
        (2, 4, [3, 4]),
        (4, 1, []),
        (5, 1, []),
        (9, 1, []),
    ],
)
def test_prompt_targets_follow_each_computed_position(tables, start, count, targets):
    # The prompt has 5 tokens: positions 1 to 4 are predicted.
    row = ScheduledRequest("b", start, count)
    assert list(prompt_targets(row, tables["b"])) == targets
