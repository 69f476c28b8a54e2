"""What the way over HTTP costs: many streams through `octavo serve` against the offline engine.

Both have the same work: so many prompts at once, all of one length, of which nothing is cached.
They take turns, and who begins changes, so that whatever disturbs the machine disturbs both. The
client runs on the same machine and only counts. Prints one line of JSON: tokens a second
(generated) of both, their ratio (the median of the rounds'), and microseconds of a core that the
server's process and the client took for each token. Exits 1 if the ratio is below ``--least``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # who has no turn must not spin

import psutil
from soak import Server

from octavo import LLM, SamplingParams

Prompts = list[list[int]]


def prompts_of(args: argparse.Namespace, number: int) -> Prompts:
    """The work of a round, or of the round that warms up (number -1)."""
    rng = random.Random(number)
    return [
        [rng.randrange(1000, 40_000) for _ in range(args.prompt_tokens)]
        for _ in range(args.streams)
    ]


async def _stream(server: Server, body: bytes) -> int:
    """Reads one stream to its end; the number of generated tokens."""
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 20)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        usage = b""
        async for line in reader:
            if line.startswith(b'data: {"') and b'"choices":[]' in line:
                usage = line
        if not usage:
            raise SystemExit("a stream ended without its usage: see the server's log")
        tokens: int = json.loads(usage.removeprefix(b"data: "))["usage"]["completion_tokens"]
        return tokens
    finally:
        writer.close()


async def _all(server: Server, bodies: list[bytes]) -> int:
    return sum(await asyncio.gather(*(_stream(server, body) for body in bodies)))


def through_server(server: Server, prompts: Prompts, args: argparse.Namespace) -> float:
    """Tokens a second."""
    bodies = [
        json.dumps(
            {
                "prompt": prompt,
                "max_tokens": args.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        for prompt in prompts
    ]
    began = time.perf_counter()
    tokens = asyncio.run(_all(server, bodies))
    seconds = time.perf_counter() - began
    assert tokens == args.streams * args.max_tokens, tokens
    return tokens / seconds


def offline(llm: LLM, prompts: Prompts, args: argparse.Namespace) -> float:
    """Tokens a second."""
    params = SamplingParams(max_tokens=args.max_tokens, temperature=0, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    seconds = time.perf_counter() - began
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert tokens == args.streams * args.max_tokens, tokens
    return tokens / seconds


def measure(llm: LLM, server: Server, args: argparse.Namespace) -> dict[str, object]:
    """Rounds of both."""
    ways: dict[str, Callable[[Prompts], float]] = {
        "offline": lambda prompts: offline(llm, prompts, args),
        "server": lambda prompts: through_server(server, prompts, args),
    }
    for way in ways.values():
        way(prompts_of(args, -1))
    front = psutil.Process(server.process.pid)
    cores = {"server": front.cpu_times, "client": psutil.Process().cpu_times}
    spent = dict.fromkeys(cores, 0.0)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds):
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        for name in order:
            prompts = prompts_of(args, number)
            before = {who: sum(times()[:2]) for who, times in cores.items()}
            found[name].append(ways[name](prompts))
            if name == "server":
                for who, times in cores.items():
                    spent[who] += sum(times()[:2]) - before[who]
    tokens = args.rounds * args.streams * args.max_tokens
    ratios = [over / plain for over, plain in zip(found["server"], found["offline"], strict=True)]
    return {
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "max_tokens": args.max_tokens,
        "rounds": args.rounds,
        "offline_tokens_per_s": round(statistics.median(found["offline"]), 1),
        "server_tokens_per_s": round(statistics.median(found["server"]), 1),
        **{f"{who}_us_per_token": round(1e6 * s / tokens, 1) for who, s in spent.items()},
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> int:
    """Starts both, measures, and ends the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--least", type=float, default=0.0, help="ratio that is good enough")
    args = parser.parse_args()
    length = -(-(args.prompt_tokens + args.max_tokens) // 16) * 16
    options = {
        "max_model_len": length,
        "num_blocks": args.streams * length // 16 + 16,
        "max_num_seqs": args.streams,
        # Measured at start otherwise, and not alike.
        "max_num_batched_tokens": max(256, args.streams),
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    server = Server.start(args.model, flags)
    try:
        result = measure(LLM(args.model, **options), server, args)
    finally:
        server.process.terminate()
        server.process.wait()
    print(json.dumps(result))
    return int(result["ratio"] < args.least)  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
