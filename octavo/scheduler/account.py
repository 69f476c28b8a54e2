"""Why a step became what it is, as far as its plan does not tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.types import AdmissionStop, RequestId


@dataclass(slots=True)
class StepAccount:
    """Made anew with every step, for whoever records."""

    preempted: list[tuple[RequestId, RequestId]] = field(default_factory=list)
    """Who gave back blocks, and for whom: for itself, if nobody ranks behind it."""
    stopped: AdmissionStop | None = None
    """Why somebody still stands in line; None if nobody does."""
