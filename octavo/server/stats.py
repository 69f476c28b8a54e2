"""``/stats`` and ``/stats/blocks``: how things stand, as the engine says when asked.

The engine answers between two steps, so that its numbers agree with each other; nobody asking costs
nothing. What counts since the start comes from the same instruments as ``/metrics``.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from array import array
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from octavo import __version__
from octavo.core.errors import RequestTimeout
from octavo.core.info import EngineInfo
from octavo.metrics.registry import EngineMetrics
from octavo.metrics.snapshot import BLOCK_STATES, BlockMap, EngineSnapshot, RequestRow
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)

MAX_REQUESTS = 10_000
MAX_BLOCKS = 1 << 20
_PATIENCE_S = 30.0
"""How long a step may take before nobody waits for the answer any more."""


class Amounts(msgspec.Struct):
    """Something of which there is so much, all of it in one of three states."""

    total: int
    used: int
    """By requests."""
    cached: int
    """By nobody, but findable by prefix until evicted."""
    free: int


class Tokens(Amounts):
    """Token slots."""

    wasted: int
    """Used slots that hold no token: the ends of requests' last blocks."""


class Cache(msgspec.Struct):
    """The KV cache."""

    block_size: int
    usage: float
    """Share of blocks in use, 0 to 1."""
    blocks: Amounts
    tokens: Tokens
    shared_blocks: int
    """Held by several requests."""
    contiguous_slots: int
    """Token slots that running requests would hold if the longest output that each may have were
    reserved in one piece."""


class Memory(msgspec.Struct):
    """The plan of the device's memory, in bytes, as made at start."""

    total: int
    usable: int
    weights: int
    activations: int
    other: int
    kv_cache: int
    kv_block: int


class EngineState(msgspec.Struct):
    """The engine's process and settings."""

    pid: int
    resident_bytes: int | None
    cpu_s: float
    restarts: int
    step: int
    """Number of the last step; -1 before the first."""
    model: str
    architecture: str
    dtype: str
    kv_dtype: str
    quantization: str
    device: str
    attention_backend: str
    num_threads: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str | None
    enable_prefix_caching: bool
    startup_s: dict[str, float]


class Counts(msgspec.Struct):
    """Since the start of the server."""

    counters: dict[str, float]
    """By name, without the prefix."""
    finished: dict[str, int]
    """Completions by finish reason."""
    steps: int
    step_s: dict[str, float]
    """Seconds in all, by part of a step."""


class Requests(msgspec.Struct):
    """What runs and waits."""

    running: int
    waiting: int
    open: int
    """Clients' requests, each of one completion or several."""
    rows: tuple[RequestRow, ...]
    """Running ones first, both in order of arrival."""
    left_out: int
    """Rows beyond the limit."""


class Stats(msgspec.Struct):
    """The answer of ``/stats``."""

    time: float
    """Seconds since the epoch."""
    uptime_s: float
    version: str
    status: str
    model_names: tuple[str, ...]
    kv_cache: Cache
    memory: Memory
    engine: EngineState
    requests: Requests
    since_start: Counts


class Blocks(msgspec.Struct):
    """The answer of ``/stats/blocks``: arrays with one entry a block."""

    step: int
    block_size: int
    num_blocks: int
    first: int
    count: int
    encoding: str
    state_names: tuple[str, ...]
    """What the numbers in ``states`` stand for."""
    states: Any
    """8 bits each."""
    tokens: Any
    """8 bits each: tokens in the block."""
    ref_counts: Any
    """16 bits each."""
    owners: Any
    """32 bits each, signed: an index into ``requests``, -1 for none."""
    requests: tuple[str, ...]


@router.get("/stats", response_model=None)
async def stats(
    request: Request, limit: Annotated[int, Query(ge=0, le=MAX_REQUESTS)] = 100
) -> Response:
    """KV memory, requests, settings and counts, with ``limit`` requests at most."""
    state = state_of(request)
    return json_response(stats_of(state, await _ask(state, limit)))


@router.get("/stats/blocks", response_model=None)
async def stats_blocks(
    request: Request,
    first: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_BLOCKS)] = 1 << 16,
    encoding: Annotated[str, Query(pattern="^(base64|array)$")] = "base64",
) -> Response:
    """What every block is used for, from block ``first``, ``limit`` of them at most."""
    snapshot = await _ask(state_of(request), 0, range(first, first + limit))
    assert snapshot.blocks is not None  # noqa: S101 - asked for
    return json_response(_blocks(snapshot, snapshot.blocks, encoding))


async def _ask(state: ServerState, limit: int, blocks: range = range(0)) -> EngineSnapshot:
    try:
        return await asyncio.wait_for(state.engine.inspect(limit, blocks), _PATIENCE_S)
    except TimeoutError:
        raise RequestTimeout(
            f"the engine has not answered for {_PATIENCE_S:g} s: its step takes that long; try "
            "again, or lower max_num_batched_tokens"
        ) from None


def stats_of(state: ServerState, snapshot: EngineSnapshot) -> Stats:
    """What ``/stats`` answers if the engine says this."""
    engine, now = state.engine, time.time()
    num_rows = snapshot.num_running + snapshot.num_waiting
    return Stats(
        time=now,
        uptime_s=round(now - state.started, 3),
        version=__version__,
        status=engine.status,
        model_names=state.model_names,
        kv_cache=_cache(snapshot),
        memory=_memory(engine.info),
        engine=_engine(engine.info, snapshot, engine.num_restarts),
        requests=Requests(
            running=snapshot.num_running,
            waiting=snapshot.num_waiting,
            open=engine.num_open,
            rows=snapshot.rows,
            left_out=max(0, num_rows - len(snapshot.rows)),
        ),
        since_start=_counts(engine.metrics),
    )


def _cache(snapshot: EngineSnapshot) -> Cache:
    cache, size = snapshot.cache, snapshot.block_size
    total, used = cache.num_total_blocks, cache.num_used_blocks
    cached, free = cache.num_cached_blocks, cache.num_free_blocks
    return Cache(
        block_size=size,
        usage=cache.usage,
        blocks=Amounts(total, used, cached, free),
        tokens=Tokens(
            total * size, used * size, cached * size, free * size, snapshot.num_wasted_slots
        ),
        shared_blocks=snapshot.num_shared_blocks,
        contiguous_slots=snapshot.num_contiguous_slots,
    )


def _memory(info: EngineInfo) -> Memory:
    plan, use = info.cache_plan, info.cache_plan.memory
    return Memory(
        total=use.total_bytes,
        usable=int(use.total_bytes * plan.utilization),
        weights=use.weight_bytes,
        activations=use.activation_bytes,
        other=use.other_bytes,
        kv_cache=plan.cache_bytes,
        kv_block=plan.bytes_per_block,
    )


def _engine(info: EngineInfo, snapshot: EngineSnapshot, num_restarts: int) -> EngineState:
    return EngineState(
        pid=snapshot.process.pid,
        resident_bytes=snapshot.process.resident_bytes,
        cpu_s=snapshot.process.cpu_s,
        restarts=num_restarts,
        step=snapshot.step_id,
        model=info.model,
        architecture=info.spec.architecture,
        dtype=info.dtype,
        kv_dtype=info.kv_dtype,
        quantization=info.quantization,
        device=info.device,
        attention_backend=info.attention_backend,
        num_threads=info.num_threads,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        policy=info.policy,
        enable_prefix_caching=info.enable_prefix_caching,
        startup_s=info.startup_s,
    )


def _counts(metrics: EngineMetrics) -> Counts:
    steps, step_s = metrics.step_totals()
    return Counts(metrics.totals(), metrics.finished(), steps, step_s)


def _blocks(snapshot: EngineSnapshot, found: BlockMap, encoding: str) -> Blocks:
    shown = _as_text if encoding == "base64" else _as_numbers
    return Blocks(
        step=snapshot.step_id,
        block_size=snapshot.block_size,
        num_blocks=snapshot.cache.num_total_blocks,
        first=found.first,
        count=len(found.states),
        encoding="base64, little-endian" if encoding == "base64" else "array",
        state_names=BLOCK_STATES,
        states=shown(found.states, "B"),
        tokens=shown(found.num_tokens, "B"),
        ref_counts=shown(found.ref_counts, "H"),
        owners=shown(found.owners, "i"),
        requests=found.owner_ids,
    )


def _as_text(raw: bytes, _code: str) -> str:
    return base64.b64encode(raw).decode("ascii")


def _as_numbers(raw: bytes, code: str) -> list[int]:
    numbers = array(code)
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
