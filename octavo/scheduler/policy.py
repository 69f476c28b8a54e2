"""Who comes first: an order over requests. The last in it is the first to be preempted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from octavo.core.request import Request
from octavo.core.types import PolicyName

Rank: TypeAlias = tuple[int, float, int]
"""Smaller is served earlier. No two requests have the same rank."""

Policy: TypeAlias = Callable[[Request, int], Rank]
"""Rank of a request from its fields and its number in order of arrival."""


def fcfs(request: Request, number: int) -> Rank:
    """First come, first served."""
    return (0, request.arrival_s, number)


def priority(request: Request, number: int) -> Rank:
    """Lower priority values first, then first come, first served."""
    return (request.priority, request.arrival_s, number)


POLICIES: dict[PolicyName, Policy] = {"fcfs": fcfs, "priority": priority}
