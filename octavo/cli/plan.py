"""``octavo plan``: what fits on an accelerator and how fast it can be, from config.json alone."""

from __future__ import annotations

import argparse
import json

from octavo.cli.sampling import add_engine_arguments, engine_options
from octavo.core.cache_plan import MemoryUse, plan_cache
from octavo.core.config import EngineConfig
from octavo.core.errors import ConfigError
from octavo.loader.checkpoint import read_checkpoint
from octavo.loader.source import resolve_source
from octavo.planner import capacity

_BATCHES = (1, 8, 32, 128)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The accelerator, the length of a request, and the engine's flags."""
    parser.add_argument("--gpu", choices=sorted(capacity.ACCELERATORS), required=True)
    parser.add_argument(
        "--request-tokens", type=int, default=500, metavar="N", help="prompt + output [500]"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plans and prints."""
    from octavo.runner.memory import activation_bytes

    options = {"load_format": "dummy", **engine_options(args)}
    config = EngineConfig.from_options(**options)
    if config.model.quantization in ("int8", "int4") or config.speculation.parsed is not None:
        raise ConfigError("plan knows neither quantization nor speculation yet: leave them out")
    if args.request_tokens < 1:
        raise ConfigError(f"--request-tokens is {args.request_tokens}: use 1 or more")
    spec = read_checkpoint(resolve_source(config.model), config.model.load_format).spec
    wanted = config.model.dtype
    dtype = spec.dtype if wanted == "auto" else wanted
    kv = config.cache.kv_cache_dtype
    kv_dtype = dtype if kv == "auto" else kv
    device = capacity.ACCELERATORS[args.gpu]
    tokens, rows = config.scheduler.token_budget(), config.scheduler.max_num_seqs
    memory = MemoryUse(
        total_bytes=device.memory_bytes,
        weight_bytes=spec.weight_bytes(dtype),
        activation_bytes=activation_bytes(
            spec, dtype, max_tokens=tokens, max_rows=rows, upcast=False
        ),
    )
    longest = config.model.max_model_len
    plan = plan_cache(
        spec,
        config.cache,
        kv_dtype,
        memory,
        default_utilization=0.9,
        max_model_len=None if longest == "auto" else longest or spec.max_position,
    )
    n = args.request_tokens
    rates = [
        capacity.decode_rate(spec, device, batch, n, dtype=dtype, kv_dtype=kv_dtype)
        for batch in _BATCHES
    ]
    record = {
        "weight_bytes": memory.weight_bytes,
        "activation_bytes": memory.activation_bytes,
        "kv_bytes_per_token": spec.kv_bytes_per_token(kv_dtype),
        "num_blocks": plan.num_blocks,
        "num_tokens": plan.num_tokens,
        "contiguous_requests": capacity.contiguous_requests(plan),
        "paged_requests": capacity.paged_requests(plan, n),
        "prefill_tokens_per_s": round(capacity.prefill_rate(spec, device, n)),
        "decode_tokens_per_s": {r.batch: round(r.decode_tokens_per_s) for r in rates},
    }
    if args.json:
        print(json.dumps(record))
        return 0
    for what, amount in [
        *plan.ledger(),
        *((k.replace("_", " "), str(v)) for k, v in record.items()),
    ]:
        print(f"{what:<22} {amount}")
    return 0
