"""What tenants use of what they may: token buckets, and an account for each tenant.

A bucket holds a minute's worth, and fills at a steady rate. Nothing is reserved: requests are
charged as they are admitted, and tokens as they are computed, so that a bucket may go below zero;
then the tenant waits until the debt is paid. Clients that leave have paid for what they got, and
get back what they paid for a prompt that was never begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

from octavo.core.protocols import Clock
from octavo.server.access.keys import KeyLimits

_MINUTE_S = 60.0
_ROUNDING = 1e-6
"""Who waits exactly as long as told does not find the bucket a hair's breadth short."""
_SLOT_WAIT_S = 1.0
"""When to try again after too many requests at once; nobody knows when one of them ends."""

Header = tuple[bytes, bytes]


class Bucket:
    """So much a minute, all at once if need be."""

    __slots__ = ("_clock", "_level", "_updated_s", "limit")

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._level = float(limit)
        self._updated_s = clock()

    def take(self, amount: int) -> None:
        """Takes ``amount``, even if there is less; a negative one is given back."""
        self._level = self.level - amount

    def change_limit(self, limit: int) -> None:
        """From now on; what has been taken stays taken."""
        self._level = self.level + limit - self.limit
        self.limit = limit

    @property
    def level(self) -> float:
        """What is there now; negative for a debt."""
        now = self._clock()
        self._level = min(
            self.limit, self._level + (now - self._updated_s) * self.limit / _MINUTE_S
        )
        self._updated_s = now
        return self._level

    @property
    def wait_s(self) -> float:
        """Seconds until there is one to take."""
        missing = 1 - self.level
        return missing * _MINUTE_S / self.limit if missing > _ROUNDING else 0.0

    @property
    def reset_s(self) -> float:
        """Seconds until it is full if nothing is taken."""
        return (self.limit - self.level) * _MINUTE_S / self.limit


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request is from, as logs and metrics may show it."""

    name: str
    """The name of its API key; of a key without one, a name that only this process knows it by."""
    is_admin: bool = False
    """Whether it may see and abort the requests of others."""


class Refusal(NamedTuple):
    """Why a request has to wait."""

    kind: Literal["requests", "tokens"]
    message: str
    retry_after_s: int


class Account:
    """One tenant: whom it is, what it may use, and what it uses now."""

    def __init__(
        self, name: str, limits: KeyLimits, clock: Clock, *, is_admin: bool = False
    ) -> None:
        self.principal = Principal(name, is_admin)
        self.num_in_flight = 0
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.set_limits(limits)

    def set_admin(self, is_admin: bool) -> None:
        """Whether it may see and abort the requests of others, from now on."""
        self.principal = Principal(self.principal.name, is_admin)

    def set_limits(self, limits: KeyLimits) -> None:
        """From now on; what has been used is not forgotten."""
        self.limits = limits
        self._requests = self._adjusted(self._requests, limits.requests_per_minute)
        self._tokens = self._adjusted(self._tokens, limits.tokens_per_minute)

    def _adjusted(self, bucket: Bucket | None, limit: int | None) -> Bucket | None:
        if bucket is None or limit is None:
            return None if limit is None else Bucket(limit, self._clock)
        bucket.change_limit(limit)
        return bucket

    @property
    def has_rates(self) -> bool:
        """Whether requests or tokens of a minute are limited."""
        return self._requests is not None or self._tokens is not None

    def admit(self) -> Refusal | None:
        """Lets a request in, which `leave` must follow; or says why not, and charges nothing."""
        name, limits = self.principal.name, self.limits
        if limits.max_concurrency is not None and self.num_in_flight >= limits.max_concurrency:
            return Refusal(
                "requests",
                f"the API key {name!r} has {self.num_in_flight} requests in flight, and may have "
                f"{limits.max_concurrency}: wait for one of them to end",
                ceil(_SLOT_WAIT_S),
            )
        if self._requests is not None and (wait_s := self._requests.wait_s):
            return _too_fast("requests", name, self._requests.limit, wait_s)
        if self._tokens is not None and (wait_s := self._tokens.wait_s):
            return _too_fast("tokens", name, self._tokens.limit, wait_s)
        if self._requests is not None:
            self._requests.take(1)
        self.num_in_flight += 1
        return None

    def leave(self) -> None:
        """A request that was let in has ended."""
        self.num_in_flight -= 1

    def charge(self, num_tokens: int) -> None:
        """The tenant has used so many tokens; a negative number was charged by mistake."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def headers(self) -> list[Header]:
        """What is left, in the headers that clients of the OpenAI API know."""
        found: list[Header] = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(0, int(bucket.level))
                found += [
                    (f"x-ratelimit-limit-{kind}".encode(), b"%d" % bucket.limit),
                    (f"x-ratelimit-remaining-{kind}".encode(), b"%d" % left),
                    (f"x-ratelimit-reset-{kind}".encode(), _duration(bucket.reset_s)),
                ]
        return found


def _too_fast(kind: Literal["requests", "tokens"], name: str, limit: int, wait_s: float) -> Refusal:
    seconds = ceil(wait_s)
    message = (
        f"rate limit reached: the API key {name!r} may use {limit} {kind} a minute: "
        f"try again in {seconds} s"
    )
    return Refusal(kind, message, seconds)


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: 20ms, 1.5s, 2m3s."""
    milliseconds = ceil(seconds * 1000)
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:g}s"
    return (f"{minutes}m{text}" if minutes else text).encode()
