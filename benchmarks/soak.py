"""Holds many streaming connections for long, some of which vanish, and looks at what is left.

Starts `octavo serve`, and learns what each of a set of prompts should give by asking one at a time.
Then every connection asks in a loop; a share of the requests closes its socket at a random moment,
and all others must end with the right tokens. In the end nothing may run, wait or hold a block, and
open files and memory of both processes must be where they were after the first part of the run.
Prints one line of JSON; exits 1 if anything was wrong. With ``--kills`` the engine is killed so
often, evenly over the run, and an answer may also be an error that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

NUM_PROMPTS = 32
EXPECTED_ERRORS = frozenset({"engine_dead", "engine_restarting"})
RSS_SLACK_BYTES = 64 << 20
"""What allocators may keep besides a tenth of the memory in use."""


@dataclass
class Server:
    """`octavo serve` as a child process."""

    process: subprocess.Popen[str]
    host: str
    port: int

    @classmethod
    def start(cls, model: str, options: list[str]) -> Server:
        """Waits until it is ready."""
        command = [sys.executable, "-m", "octavo.cli", "serve", model, "--port", "0", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"ready after .* http://([^:]+):(\d+)/v1", line)
            if found:
                # Nobody reads on: what it says from now on must not fill the pipe.
                os.set_blocking(process.stderr.fileno(), False)
                return cls(process, found[1], int(found[2]))
            print(line, end="", file=sys.stderr)
        raise SystemExit("the server did not start")

    def listen_in(self) -> str:
        """What it has said since the last time."""
        assert self.process.stderr is not None
        with suppress(BlockingIOError, TypeError):
            return os.read(self.process.stderr.fileno(), 1 << 20).decode()
        return ""

    @property
    def engine(self) -> psutil.Process | None:
        """The engine's process."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "octavo.cli.engine_process" in child.cmdline():
                    return child
        return None

    def metric(self, name: str) -> float:
        """The sum of a family's samples, by name and, as far as wanted, labels."""
        url = f"http://{self.host}:{self.port}/metrics"
        with urllib.request.urlopen(url) as page:
            text = page.read().decode()
        return sum(map(float, re.findall(rf"^octavo:{name}.* (\S+)$", text, re.MULTILINE)))

    def is_healthy(self) -> bool:
        """Whether the engine answers."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.port}/health"):
                return True
        except OSError:
            return False

    def usage(self) -> dict[str, int]:
        """Open files and resident bytes of both processes."""
        found = {}
        for name, process in (
            ("server", psutil.Process(self.process.pid)),
            ("engine", self.engine),
        ):
            if process is not None:
                found[f"{name}_files"] = process.num_fds()
                found[f"{name}_rss"] = process.memory_info().rss
        return found


@dataclass
class Load:
    """What the clients do, and what came of it."""

    server: Server
    args: argparse.Namespace
    prompts: list[dict[str, Any]]
    expected: list[list[int]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    slowest_s: float = 0.0
    open_now: int = 0
    most_open: int = 0

    async def stream(self, number: int, vanish_after: int | None) -> tuple[str, list[int]]:
        """Asks once; returns how it ended, and the tokens. ``vanish_after`` events the client is
        gone."""
        raw = json.dumps(self.prompts[number]).encode()
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        tokens: list[int] = []
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)
            )
            if vanish_after == 0:
                await writer.drain()
                return "vanished", tokens
            status = int((await reader.readline()).split()[1])
            num_events = 0
            async for line in reader:
                if status != 200 and line.startswith(b'{"error"'):
                    return json.loads(line)["error"]["code"], tokens
                if not line.startswith(b"data: "):
                    continue
                num_events += 1
                if line == b"data: [DONE]\n":
                    return "done", tokens
                value = json.loads(line.removeprefix(b"data: "))
                if "error" in value:
                    return value["error"]["code"], tokens
                tokens += value["choices"][0]["token_ids"]
                if num_events == vanish_after:
                    return "vanished", tokens
            return "cut off", tokens
        finally:
            self.open_now -= 1
            writer.transport.abort()

    async def learn(self) -> None:
        """What each prompt gives when nothing else runs."""
        for number in range(len(self.prompts)):
            how, tokens = await self.stream(number, None)
            assert how == "done", how
            assert len(tokens) == self.prompts[number]["max_tokens"]
            self.expected.append(tokens)

    async def client(self, until: float, rng: random.Random) -> None:
        """Asks until time is up."""
        while time.monotonic() < until:
            number = rng.randrange(len(self.prompts))
            length = self.prompts[number]["max_tokens"]
            vanishes = rng.random() < self.args.vanish
            began = time.monotonic()
            try:
                how, tokens = await asyncio.wait_for(
                    self.stream(number, rng.randrange(length) if vanishes else None),
                    self.args.patience,
                )
            except TimeoutError:
                how, tokens = "hung", []
            except OSError as error:
                how, tokens = f"{type(error).__name__}", []
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.num_tokens += len(tokens)
            right = self.expected[number]
            if tokens != (right if how == "done" else right[: len(tokens)]):
                how = "wrong tokens"
            self.outcomes[how] += 1
            if how not in ("done", "vanished"):
                await asyncio.sleep(rng.random())

    async def run(self) -> dict[str, Any]:
        """The whole soak; returns the numbers."""
        args = self.args
        await self.learn()
        began = time.monotonic()
        clients = [
            asyncio.create_task(self.client(began + args.seconds, random.Random(seed)))
            for seed in range(args.connections)
        ]
        killer = asyncio.create_task(self.kill(args.kills, args.seconds))
        usages = []
        for _ in range(4):
            await asyncio.sleep(args.seconds / 4)
            usages.append({"open": self.open_now, **self.server.usage()})
            print(json.dumps({"seconds": round(time.monotonic() - began), **usages[-1]}))
        await killer
        await asyncio.gather(*clients)
        await self.is_quiet()
        seconds = time.monotonic() - began
        return {
            "connections": args.connections,
            "most_open": self.most_open,
            "seconds": round(seconds, 1),
            "outcomes": dict(self.outcomes),
            "tokens_per_s": round(self.num_tokens / seconds, 1),
            "slowest_s": round(self.slowest_s, 1),
            "restarts": int(self.server.metric("engine_restarts_total")),
            "left": {
                "running": self.server.metric("num_requests_running"),
                "waiting": self.server.metric("num_requests_waiting"),
                "used_blocks": self.server.metric(r"kv_cache_blocks.*used"),
            },
            "first": usages[0],
            "after": self.server.usage(),
        }

    async def kill(self, times: int, seconds: float) -> None:
        """Kills the engine, evenly over the run; each must be back before the next."""
        for _ in range(times):
            await asyncio.sleep(seconds / (times + 1))
            while not await asyncio.to_thread(self.server.is_healthy):
                await asyncio.sleep(0.1)
            engine = self.server.engine
            assert engine is not None
            engine.kill()

    async def is_quiet(self) -> None:
        """Waits, not for ever, until the engine has heard that everybody is gone."""
        for _ in range(100):
            if self.server.is_healthy() and not self.server.metric("num_requests_running"):
                return
            await asyncio.sleep(0.1)


def settled(server: Server) -> dict[str, int]:
    """The usage before the load, once the process that checks grammars has been started too."""
    before, since = server.usage(), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        now = server.usage()
        if now["server_files"] != before["server_files"]:
            since = time.monotonic()
        before = now
    return before


def faults(numbers: dict[str, Any], args: argparse.Namespace, base: dict[str, int]) -> list[str]:
    """Everything that is not as it should be."""
    allowed = {"done", "vanished"} | (EXPECTED_ERRORS if args.kills else set())
    found = [f"{num} times {how}" for how, num in numbers["outcomes"].items() if how not in allowed]
    found += [f"{num} {what} at the end" for what, num in numbers["left"].items() if num]
    if not numbers["outcomes"].get("done"):
        found.append("no request was done")
    if numbers["restarts"] != args.kills:
        found.append(f"{numbers['restarts']} restarts for {args.kills} kills")
    for name, now in numbers["after"].items():
        limit = base[name] + 2  # a file may be open by chance
        if name.endswith("rss"):
            limit = int(1.1 * numbers["first"].get(name, now)) + RSS_SLACK_BYTES
        if now > limit:
            found.append(f"{name} is {now}, and was to be at most {limit}")
    return found


def make_prompts(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Bodies of requests, of different lengths."""
    rng = random.Random(0)
    return [
        {
            "prompt": [rng.randrange(5, args.max_token_id) for _ in range(rng.randrange(4, 40))],
            "max_tokens": rng.randrange(2, args.max_tokens + 1),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        for _ in range(NUM_PROMPTS)
    ]


def main() -> int:
    """Runs the soak; the status is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Options after -- are those of octavo serve."
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--vanish", type=float, default=0.2, help="share of requests [0.2]")
    parser.add_argument("--kills", type=int, default=0, help="how often to kill the engine [0]")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--max-token-id", type=int, default=250)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for an answer")
    parser.add_argument("serve_options", nargs="*")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server.start(args.model, args.serve_options)
    try:
        load = Load(server, args, make_prompts(args))
        base = settled(server)
        numbers = asyncio.run(load.run())
        wrong = faults(numbers, args, base)
        print(json.dumps({**numbers, "faults": wrong}))
    finally:
        engine = server.engine
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(60)
        print(server.listen_in(), end="", file=sys.stderr)
    if status or (engine is not None and engine.is_running()):
        wrong.append(f"the server ended with status {status}, its engine is there: {engine}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
