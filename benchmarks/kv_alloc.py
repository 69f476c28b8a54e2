"""Speed of the control plane: allocation, prefix lookup, scheduling. Prints JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from octavo.core.config import SchedulerConfig
from octavo.core.params import SamplingParams
from octavo.core.plan import RowResult, StepResult
from octavo.core.request import Request
from octavo.engine.snapshot import Asked, take_snapshot
from octavo.kv.blocks import BlockPool
from octavo.kv.manager import BlockManager
from octavo.scheduler.scheduler import Scheduler

BLOCK = 16


def median_s(work: Callable[[], object], repeat: int) -> float:
    """Median seconds of one call."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def pairs_per_second(repeat: int) -> float:
    """Allocate and free, with 10,000 blocks."""
    pool, count = BlockPool(10_000), 100_000

    def work() -> None:
        alloc, release = pool.alloc, pool.release
        for _ in range(count):
            release(alloc(), keep=False)  # type: ignore[arg-type]

    return count / median_s(work, repeat)


def new_request(name: str, num_tokens: int, max_tokens: int = 10_000) -> Request:
    """A request with a prompt that nobody else has."""
    prompt = tuple((hash(name) + i) % 50_000 for i in range(num_tokens))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=0)


def match_us(repeat: int) -> float:
    """Finding, taking and giving back the prefix of a 4,096-token prompt that is all cached."""
    blocks = BlockManager(2_000, BLOCK, enable_prefix_caching=True)
    first = new_request("a", 4096)
    blocks.reserve(first, 4096)
    first.num_computed_tokens = 4096
    blocks.commit(first)
    blocks.free(first.request_id)
    # As many requests with the same tokens, since the hashes of one are remembered.
    others = iter([new_request("a", 4096) for _ in range(repeat)])

    def work() -> None:
        other = next(others)
        hit = blocks.match(other)
        other.num_computed_tokens = hit.num_tokens
        blocks.reserve(other, 1, hit)
        blocks.free(other.request_id)

    return 1e6 * median_s(work, repeat)


def blocked_match_us(repeat: int) -> float:
    """What a request of 4,096 cached tokens costs each step while it waits for a block."""
    blocks = BlockManager(256, BLOCK, enable_prefix_caching=True)
    first, other = new_request("a", 4096), new_request("a", 4096)
    other.request_id = "b"
    blocks.reserve(first, 4096)
    first.num_computed_tokens = 4096
    blocks.commit(first)

    def work() -> None:
        hit = blocks.match(other)
        other.num_computed_tokens = hit.num_tokens
        assert blocks.reserve(other, 16, hit) is None

    return 1e6 * median_s(work, repeat)


def step_us(num_rows: int, repeat: int) -> dict[str, float]:
    """Schedule and commit of a step with ``num_rows`` decodes."""
    blocks = BlockManager(40_000, BLOCK, enable_prefix_caching=True)
    config = SchedulerConfig(max_num_seqs=num_rows, max_num_batched_tokens=max(2048, num_rows))
    scheduler = Scheduler(config, blocks, max_model_len=8192, clock=time.monotonic)
    for number in range(num_rows):
        scheduler.add(new_request(f"r{number}", 8))
    plans, commits = [], []
    for _ in range(repeat):
        began = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        assert plan is not None
        rows = tuple(RowResult(row.request_id, (1,)) for row in plan.rows)
        result = StepResult(step_id=plan.step_id, rows=rows)
        ran = time.perf_counter()
        scheduler.commit(plan, result)
        plans.append(planned - began)
        commits.append(time.perf_counter() - ran)
    return {
        "schedule_us": 1e6 * statistics.median(plans),
        "commit_us": 1e6 * statistics.median(commits),
        "stats_us": 1e6 * median_s(lambda: ask(scheduler, None), repeat),
        "stats_blocks_us": 1e6 * median_s(lambda: ask(scheduler, range(40_000)), repeat),
    }


def ask(scheduler: Scheduler, block_range: range | None) -> None:
    """What the engine does for ``/stats``, or for ``/stats/blocks``."""
    take_snapshot(
        scheduler,
        [],
        None,
        now_s=0.0,
        asked=Asked(100 if block_range is None else 0, block_range),
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 10, 100, 256])
    args = parser.parse_args()
    result: dict[str, object] = {
        "alloc_free_pairs_per_s": round(pairs_per_second(args.repeat)),
        "match_4096_tokens_us": round(match_us(args.repeat), 1),
        "blocked_match_4096_tokens_us": round(blocked_match_us(args.repeat), 1),
    }
    for rows in args.rows:
        times = step_us(rows, args.repeat)
        result[f"step_{rows}_rows"] = {name: round(value, 1) for name, value in times.items()}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
