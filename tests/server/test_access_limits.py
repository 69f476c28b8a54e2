"""Accounts under a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.access.keys import KeyLimits
from octavo.server.access.limits import Account, Bucket


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, **limits: Any) -> Account:
    return Account("alice", KeyLimits(**limits), clock)


def test_no_limits(clock: Clock) -> None:
    account = make(clock)
    for _ in range(1000):
        assert account.admit() is None
    account.charge(10**9)
    assert account.admit() is None
    assert account.headers() == []
    assert not account.has_rates


def test_requests_at_once(clock: Clock) -> None:
    account = make(clock, max_concurrency=2, requests_per_minute=100)
    assert [account.admit(), account.admit()] == [None, None]
    refusal = account.admit()
    assert refusal is not None
    assert refusal.retry_after_s == 1
    assert "'alice' has 2 requests in flight, and may have 2" in refusal.message
    account.leave()
    assert account.admit() is None
    assert dict(account.headers())[b"x-ratelimit-remaining-requests"] == b"97"


def test_requests_a_minute(clock: Clock) -> None:
    account = make(clock, requests_per_minute=6)
    for _ in range(6):
        assert account.admit() is None
        account.leave()
    refusal = account.admit()
    assert refusal is not None
    assert (refusal.kind, refusal.retry_after_s) == ("requests", 10)
    assert "6 requests a minute: try again in 10 s" in refusal.message
    clock.now += 9.9
    assert account.admit() is not None
    clock.now += 0.1
    assert account.admit() is None
    assert account.admit() is not None
    clock.now += 1e6
    assert [account.admit() for _ in range(6)] == [None] * 6
    assert account.admit() is not None


def test_tokens_a_minute_and_debts(clock: Clock) -> None:
    account = make(clock, tokens_per_minute=600)
    assert account.admit() is None
    account.charge(599)
    assert account.admit() is None
    account.charge(201)
    refusal = account.admit()
    assert refusal is not None
    assert refusal.kind == "tokens"
    assert refusal.retry_after_s == 21  # 200 to pay, and one to take, at 10 a second
    clock.now += 20.1
    assert account.admit() is None
    account.charge(-1000)
    assert dict(account.headers()) == {
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"600",
        b"x-ratelimit-reset-tokens": b"0ms",
    }


def test_a_refused_request_costs_nothing(clock: Clock) -> None:
    account = make(clock, max_concurrency=5, requests_per_minute=60, tokens_per_minute=1)
    assert account.admit() is None
    account.charge(1)
    for _ in range(10):
        assert account.admit() is not None
    assert account.num_in_flight == 1
    assert dict(account.headers())[b"x-ratelimit-remaining-requests"] == b"59"


@pytest.mark.parametrize(
    ("used", "text"),
    [(0, b"0ms"), (1, b"100ms"), (9, b"900ms"), (15, b"1.5s"), (600, b"1m0s"), (1255, b"2m5.5s")],
)
def test_how_long_until_all_is_there_again(clock: Clock, used: int, text: bytes) -> None:
    account = make(clock, tokens_per_minute=600)
    account.charge(used)
    headers = dict(account.headers())
    assert headers[b"x-ratelimit-reset-tokens"] == text
    assert headers[b"x-ratelimit-remaining-tokens"] == str(max(0, 600 - used)).encode()


def test_new_limits_forget_nothing(clock: Clock) -> None:
    account = make(clock, tokens_per_minute=100)
    account.charge(80)
    account.set_limits(KeyLimits(tokens_per_minute=50))
    assert dict(account.headers())[b"x-ratelimit-remaining-tokens"] == b"0"
    account.set_limits(KeyLimits(tokens_per_minute=1000))
    assert dict(account.headers())[b"x-ratelimit-remaining-tokens"] == b"920"
    account.set_limits(KeyLimits(requests_per_minute=3))
    assert dict(account.headers())[b"x-ratelimit-remaining-requests"] == b"3"


@given(
    limit=st.integers(1, 10**9),
    moves=st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 10**9)), max_size=20),
)
def test_who_waits_as_long_as_told_is_let_in(limit: int, moves: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = Bucket(limit, clock)
    for seconds, amount in moves:
        clock.now += seconds
        bucket.take(amount)
        assert bucket.level <= limit
    wait_s = bucket.wait_s
    clock.now += wait_s
    assert bucket.wait_s <= max(1e-6, wait_s * 1e-6)


@given(st.integers(1, 10**6), st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_no_more_than_the_rate_in_the_long_run(limit: int, gaps: list[float]) -> None:
    clock = Clock()
    bucket = Bucket(limit, clock)
    taken = 0
    for gap in gaps:
        clock.now += gap
        if not bucket.wait_s:
            amount = max(1, int(bucket.level))
            bucket.take(amount)
            taken += amount
    assert taken <= limit + sum(gaps) * limit / 60 + 1
