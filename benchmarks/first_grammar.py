"""How long running streams wait when the first request for structured output comes. Prints JSON.

Starts `octavo serve`, keeps some streams running, and asks for JSON while they run. Gaps are those
between a stream's chunks, in milliseconds: the longest before the request, and the longest while it
was being prepared and answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from typing import Any

import httpx
from soak import Server

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


async def stream(client: httpx.AsyncClient, number: int, times: list[float]) -> None:
    """A stream that goes on until it is cancelled; notes when its chunks came."""
    body = {"prompt": f"{number}: ", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line:
                times.append(time.perf_counter())


def longest_gap_ms(chunks: list[list[float]], begin: float, end: float) -> float:
    """Between two chunks of any stream, of which one at least lies in the interval."""
    gaps = [
        after - before
        for times in chunks
        for before, after in itertools.pairwise(times)
        if after >= begin and before <= end
    ]
    return round(1e3 * max(gaps), 1)


async def measure(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """The first structured request, and then others."""
    chunks: list[list[float]] = [[] for _ in range(args.streams)]
    body = {
        "messages": [{"role": "user", "content": "Invent somebody."}],
        "max_tokens": 8,
        "response_format": FORMAT,
    }
    base_url = f"http://{server.host}:{server.port}"
    async with httpx.AsyncClient(base_url=base_url, timeout=120) as client:
        tasks = [asyncio.create_task(stream(client, n, times)) for n, times in enumerate(chunks)]
        await asyncio.sleep(args.seconds)
        marks = [time.perf_counter() - args.seconds / 2, time.perf_counter()]
        for _ in range(2):
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            marks.append(time.perf_counter())
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    steps = [after - before for before, after in itertools.pairwise(chunks[0])]
    return {
        "streams": args.streams,
        "median_gap_ms": round(1e3 * statistics.median(steps), 1),
        "before_ms": longest_gap_ms(chunks, marks[0], marks[1]),
        "first_ms": longest_gap_ms(chunks, marks[1], marks[2]),
        "second_ms": longest_gap_ms(chunks, marks[2], marks[3]),
        "first_answer_s": round(marks[2] - marks[1], 2),
        "second_answer_s": round(marks[3] - marks[2], 2),
    }


def main() -> None:
    """Starts a server, measures, and ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0, help="before the first request")
    args = parser.parse_args()
    server = Server.start(args.model, ["--num-blocks", "1024", "--max-model-len", "4096"])
    try:
        print(json.dumps(asyncio.run(measure(server, args))))
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
