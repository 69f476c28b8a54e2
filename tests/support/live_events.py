"""Events of ``/stats/stream`` as a server might send them, for pages under test."""

from __future__ import annotations

import json
from array import array
from typing import Any

from octavo.metrics.live import COLUMNS, packed
from octavo.metrics.snapshot import BLOCK_STATES


def row(**fields: Any) -> dict[str, Any]:
    """A request as the stream tells of it."""
    return {
        "state": "running",
        "priority": 0,
        "num_prompt_tokens": 40,
        "num_cached_tokens": 16,
        "num_computed_tokens": 47,
        "num_generated_tokens": 8,
        "num_blocks": 3,
        "num_wasted_slots": 1,
        "num_preemptions": 0,
        "num_drafted_tokens": 0,
        "num_accepted_tokens": 0,
        "arrived_s": 1.0,
        **fields,
    }


def state(num_blocks: int, rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A server's state with these requests."""
    blocks = {"total": num_blocks, "used": 3, "cached": 0, "free": num_blocks - 3}
    memory = dict.fromkeys(("total", "weights", "activations", "other", "kv_cache", "kv_block"), 1)
    counters = {"prefix_cache_hits_total": 16, "prefix_cache_queries_total": 40}
    return {
        "time": 1.8e9,
        "clock_s": 100.0,
        "version": "0",
        "status": "ok",
        "model_names": ["model"],
        "kv_cache": {
            "block_size": 16,
            "usage": 0.1,
            "blocks": blocks,
            "tokens": {name: 16 * size for name, size in blocks.items()} | {"wasted": 1},
            "shared_blocks": 0,
            "contiguous_slots": 100,
        },
        "memory": memory,
        "engine": {
            "max_model_len": 2048,
            "attention_backend": "native",
            "device": "cpu",
            "resident_bytes": 1 << 28,
        },
        "requests": {"running": len(rows), "waiting": 0, "open": 1, "left_out": 0, "rows": rows},
        "since_start": {"counters": counters},
        **fields,
    }


def blocks_of(ids: list[int], states: list[int]) -> dict[str, str]:
    """Blocks that have changed."""
    count = len(ids)
    values: dict[str, list[Any]] = {
        "states": states,
        "tokens": [16] * count,
        "ref_counts": [int(code > 1) for code in states],
        "hashes": ids,
        "changed_s": [50.0] * count,
    }
    columns = {name: packed(array(code, values[name])) for name, code in COLUMNS.items()}
    return {"ids": packed(array("I", ids)), **columns}


def snapshot(
    shown: dict[str, Any],
    *,
    num_blocks: int,
    tables: dict[str, list[int]],
    states: dict[int, int] | None = None,
) -> str:
    """A first event; ``states`` by block."""
    used = dict.fromkeys((block for table in tables.values() for block in table), 2)
    found = dict(sorted({**(states or {}), **used}.items()))
    data = {
        "state": shown,
        "tables": {name: [0, table] for name, table in tables.items()},
        "blocks": {
            "num_blocks": num_blocks,
            "state_names": BLOCK_STATES,
            **blocks_of(list(found), list(found.values())),
        },
        "history": {},
    }
    return event("snapshot", data)


def event(name: str, data: Any) -> str:
    """An event as it is sent."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
