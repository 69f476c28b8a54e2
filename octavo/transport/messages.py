"""Every message that crosses between the front end and the engine.

msgspec structs and the core's own frozen dataclasses: typed, tagged, and cheap to encode.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from octavo.core.info import EngineInfo
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta
from octavo.core.types import RequestId, TokenId
from octavo.metrics.snapshot import EngineChanges, EngineSnapshot
from octavo.metrics.stats import StepStats


class Submit(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Front to engine: start a request (``params.n`` completions of it)."""

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[TokenId] = frozenset()
    priority: int = 0
    cache_salt: str = ""


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Front to engine: drop these requests at once. Ids that are unknown or ended are ignored."""

    request_ids: tuple[RequestId, ...]


class Inspect(msgspec.Struct, tag=True, frozen=True):
    """Front to engine: say how things stand, before the next step."""

    number: int
    """Comes back with the answer."""
    max_requests: int
    """Rows to send at most."""
    first_block: int = 0
    num_blocks: int = 0
    """How many blocks to describe, from ``first_block``."""


class Watch(msgspec.Struct, tag=True, frozen=True):
    """Front to engine: say what has changed since the last `Watch`, before the next step."""

    number: int
    """Comes back with the answer."""
    max_requests: int
    """Rows to send at most."""
    num_text_tokens: int = 0
    """Tokens of prompts and outputs to send."""
    afresh: bool = False
    """Say everything."""


class Unwatch(msgspec.Struct, tag=True, frozen=True):
    """Front to engine: nobody watches any more, and nothing need be noted for it."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Front to engine: leave the loop; whatever still runs is aborted."""


class Progress(msgspec.Struct, tag=True, frozen=True):
    """Engine to front while starting: what is being done, and how much of it is done (0 to 1)."""

    stage: str
    fraction: float


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Engine to front: accepting requests."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Engine to front: the engine cannot start, or cannot go on; it ends after this message."""

    error: str
    kind: str
    """Name of the exception class."""


class StepDone(msgspec.Struct, tag=True, frozen=True):
    """Engine to front after each step, and when requests end without one."""

    deltas: tuple[RequestDelta, ...]
    stats: StepStats


class Inspected(msgspec.Struct, tag=True, frozen=True):
    """Engine to front: the answer to `Inspect`."""

    number: int
    snapshot: EngineSnapshot


class Watched(msgspec.Struct, tag=True, frozen=True):
    """Engine to front: the answer to `Watch`."""

    number: int
    changes: EngineChanges


class Lost(msgspec.Struct, frozen=True):
    """To the front end, from whoever keeps its engine running: the engine is gone with all that
    it was doing, and another one is on its way, whose `Ready` comes when it is there."""

    reason: str
    ready_in_s: float
    """How long that will take, as far as one can tell."""


ToEngine: TypeAlias = Submit | Abort | Inspect | Watch | Unwatch | Shutdown
FromEngine: TypeAlias = Progress | Ready | Failed | StepDone | Inspected | Watched
