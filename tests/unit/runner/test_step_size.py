from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.runner.step_size import StepSize, choose_step_size, sizes_between


class Machine:
    """Steps take the time that a formula says."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.now, self.ran = 0.0, list[int]()
        self._seconds = seconds

    def run(self, size: int) -> None:
        self.ran.append(size)
        self.now += self._seconds(size)

    def choose(self, smallest: int = 64, largest: int = 8192, at_least: int = 1) -> StepSize:
        sizes = sizes_between(smallest, largest)
        return choose_step_size(sizes, self.run, at_least=at_least, clock=lambda: self.now)


def test_sizes() -> None:
    assert sizes_between(64, 512) == [64, 128, 256, 512]
    assert sizes_between(64, 500) == [64, 128, 256]
    assert sizes_between(64, 64) == [64]


def test_where_speed_grows_no_more() -> None:
    """10 ms to read the weights, overlapped with 10 µs of arithmetic a token: flat from 1,000."""
    found = Machine(lambda size: max(0.010, 1e-5 * size)).choose()
    assert found.tokens == 1024
    assert "100,000 tokens/s in steps of 1,024" in found.reason


def test_a_large_step_is_chosen_where_it_pays() -> None:
    assert Machine(lambda size: 0.010 + 1e-6 * size).choose(largest=16384).tokens == 16384


def test_flat_from_the_start() -> None:
    machine = Machine(lambda size: 1e-3 * size)
    assert machine.choose().tokens == 64
    assert max(machine.ran) == 256, "nothing larger is tried"


def test_room_for_all_rows() -> None:
    found = Machine(lambda size: 1e-4 * size).choose(at_least=256)
    assert found.tokens == 256 and "max_num_seqs" in found.reason


@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_slow_machines_are_not_kept_from_starting(seconds: float) -> None:
    machine = Machine(lambda size: seconds * size / 64)
    assert machine.choose().tokens == 64
    assert machine.now <= 1.0 + 2 * seconds * max(machine.ran) / 64
    assert len(machine.ran) <= 3
