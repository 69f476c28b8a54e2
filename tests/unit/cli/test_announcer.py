from __future__ import annotations

from support.echo_engine import make_info

from octavo.cli.announcer import Announcer


def test_the_ledger_is_aligned_and_has_no_trailing_blanks(capsys):
    Announcer("text").ledger(make_info())
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line == line.rstrip() for line in lines)
    (blocks,) = [line for line in lines if line.startswith("blocks ")]
    (memory,) = [line for line in lines if line.startswith("memory ")]
    amount = memory.split()[1]
    assert memory.index(amount) == blocks.index(blocks.split()[1])
