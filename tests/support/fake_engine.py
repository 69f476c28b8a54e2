"""An engine that needs no model: the engine's side of a link, scripted.

It answers a prompt with the prompt's own tokens, over and over, one token a completion and step. So
what a client should get is known in advance, and everything between the link and the client's
socket is the real thing.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import uvicorn
from support import echo_engine
from support.vocabularies import byte_level_metadata

from octavo.core.config import ServerConfig
from octavo.core.errors import EngineDead
from octavo.core.info import EngineInfo
from octavo.core.plan import RequestDelta, TokenLogprobs
from octavo.core.protocols import Clock
from octavo.core.request import fork_id
from octavo.front.async_engine import AsyncEngine, Guard
from octavo.metrics.registry import EngineMetrics
from octavo.metrics.stats import CacheStats, StepStats
from octavo.server.access.control import Access
from octavo.server.app import create_app
from octavo.server.state import ServerState
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.transport.base import FrontEnd
from octavo.transport.messages import Abort, Failed, FromEngine, Ready, StepDone, Submit, ToEngine

MODEL = "echo"
MAX_MODEL_LEN = 64
EOS = 2  # <|im_end|>
EMBEDDING_SIZE = 400
_SEND_BUFFER_BYTES = 8192  # small, so that a client that does not read is felt soon
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{{ '\\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ extra }}"
)


def make_info(vocab_size: int, max_model_len: int) -> EngineInfo:
    info = echo_engine.make_info()
    spec = replace(info.spec, vocab_size=vocab_size, hidden_size=EMBEDDING_SIZE)
    return replace(info, spec=spec, max_model_len=max_model_len)


@dataclass(slots=True)
class _Run:
    """One completion in progress."""

    submit: Submit
    index: int
    num_tokens: int = 0

    def step(self, script: Script) -> RequestDelta:
        prompt, params = self.submit.prompt_token_ids, self.submit.params
        if params.max_tokens == 0:
            return self._end_of_prompt(script)
        source = script.answer_ids or prompt
        token = source[self.num_tokens % len(source)]
        first = self.num_tokens == 0
        self.num_tokens += 1
        is_end = token in self.submit.eos_token_ids and not params.ignore_eos
        is_full = self.num_tokens == params.max_tokens
        failed = script.fail_after_tokens == self.num_tokens
        reason = "error" if failed else "stop" if is_end else "length" if is_full else None
        logprobs = () if params.logprobs is None else (self._scored(token, script),)
        return RequestDelta(
            request_id=fork_id(self.submit.request_id, self.index),
            new_token_ids=(token,),
            logprobs=logprobs,
            prompt_logprobs=self._prompt_logprobs(script) if first else (),
            num_cached_tokens=script.num_cached_tokens if first else None,
            finish_reason=reason,
            error="the device failed on purpose" if failed else None,
            queue_s=0.0 if first else None,
        )

    def _scored(self, token: int, script: Script) -> TokenLogprobs:
        found = script.logprobs(token, self.submit.params.logprobs or 0)
        if script.logprob_of is None:
            return found
        return found._replace(logprob=script.logprob_of(self.index, self.num_tokens))

    def _prompt_logprobs(self, script: Script) -> tuple[TokenLogprobs, ...]:
        num_top = self.submit.params.prompt_logprobs
        if num_top is None or self.index:
            return ()
        return tuple(script.logprobs(after, num_top) for after in self.submit.prompt_token_ids[1:])

    def _end_of_prompt(self, script: Script) -> RequestDelta:
        failed = script.fail_after_tokens == 0
        kind = self.submit.params.pooling
        state = script.embedding(self.submit.prompt_token_ids, kind) if kind else None
        return RequestDelta(
            request_id=fork_id(self.submit.request_id, self.index),
            prompt_logprobs=self._prompt_logprobs(script),
            embedding=None if failed else state,
            num_cached_tokens=script.num_cached_tokens,
            finish_reason="error" if failed else "length",
            error="the device failed on purpose" if failed else None,
            queue_s=0.0,
        )


@dataclass(slots=True)
class Script:
    """How the engine behaves, and what was asked of it."""

    step_s: float = 0.0
    num_cached_tokens: int = 0
    fail_after_tokens: int | None = None
    """Every completion fails with its token of this number."""
    answer: str | None = None
    """What every completion says; the prompt if there is none."""
    answer_ids: list[int] = field(default_factory=list)
    """The same as tokens, the last one ends it; filled in where the tokenizer is known."""
    die_after_steps: int | None = None
    refuse: RequestDelta | None = None
    """What to answer to every request; its id is filled in."""
    best_logprob: float = -0.25
    logprob_of: Callable[[int, int], float] | None = None
    """Log-probability of a token by the index of its completion and its number (from 1)."""
    submits: list[Submit] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def embedding(self, token_ids: Sequence[int], kind: str) -> bytes:
        """Known in advance, and another one for each prompt and way of pooling."""
        used = token_ids if kind == "mean" else token_ids[-1:]
        return np.bincount(used, minlength=EMBEDDING_SIZE).astype(np.float32).tobytes()

    def logprobs(self, token: int, num_top: int) -> TokenLogprobs:
        """The token itself is the likeliest; the next ids are its alternatives."""
        best = self.best_logprob
        top = tuple((token + i if token + i < 300 else i, best - i) for i in range(num_top))
        return TokenLogprobs(token, best, 1, top)


class FakeEngine:
    """`FrontEnd` whose other side is a `Script`."""

    def __init__(self, script: Script, info: EngineInfo) -> None:
        self.script = script
        self._runs: dict[str, _Run] = {}
        self._outbox: asyncio.Queue[FromEngine] = asyncio.Queue()
        self._outbox.put_nowait(Ready(info))
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_dead = False

    @property
    def running(self) -> list[str]:
        return list(self._runs)

    async def send(self, message: ToEngine) -> None:
        script = self.script
        if self._task is None:
            self._task = asyncio.create_task(self._loop())
        if isinstance(message, Submit):
            script.submits.append(message)
            for index in range(message.params.n):
                name = fork_id(message.request_id, index)
                if script.refuse is None:
                    self._runs[name] = _Run(message, index)
                else:
                    self._outbox.put_nowait(_step([_renamed(script.refuse, name)]))
        elif isinstance(message, Abort):
            script.aborted += message.request_ids
            for name in message.request_ids:
                self._runs.pop(name, None)
        self._work.set()

    async def receive(self) -> FromEngine:
        if self._is_dead and self._outbox.empty():
            raise EngineDead("the engine process was killed by signal 9")
        return await self._outbox.get()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _loop(self) -> None:
        script, num_steps = self.script, 0
        while True:
            self._work.clear()
            if not self._runs:
                await self._work.wait()
                continue
            await asyncio.sleep(script.step_s)
            num_steps += 1
            if script.die_after_steps is not None and num_steps > script.die_after_steps:
                self._is_dead = True
                self._outbox.put_nowait(
                    Failed("the engine process was killed by signal 9", "EngineDead")
                )
                return
            deltas = [run.step(script) for run in self._runs.values()]
            for delta in deltas:
                if delta.finish_reason is not None:
                    del self._runs[delta.request_id]
            self._outbox.put_nowait(_step(deltas))


def _renamed(delta: RequestDelta, name: str) -> RequestDelta:
    return RequestDelta(
        request_id=name,
        finish_reason="error",
        error=delta.error,
        error_kind=delta.error_kind,
        error_param=delta.error_param,
    )


def _step(deltas: Sequence[RequestDelta]) -> StepDone:
    cache = CacheStats(
        num_total_blocks=64, num_free_blocks=64, num_cached_blocks=0, num_used_blocks=0
    )
    return StepDone(
        tuple(deltas), StepStats(step_id=0, num_running=len(deltas), num_waiting=0, cache=cache)
    )


def make_tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@dataclass(slots=True)
class Served:
    """A server's parts, for tests that look inside."""

    state: ServerState
    app: Any
    script: Script
    link: Any

    @property
    def tokenizer(self) -> Tokenizer:
        return self.state.engine.tokenizer


@asynccontextmanager
async def served(
    script: Script | None = None,
    *,
    tokenizer: Tokenizer,
    link: FrontEnd | None = None,
    template: str | None = TEMPLATE,
    max_model_len: int = MAX_MODEL_LEN,
    config: ServerConfig | None = None,
    generation_defaults: dict[str, float | int] | None = None,
    guard: Guard | None = None,
    clock: Clock = time.monotonic,
    sinks: tuple[Any, ...] = (),
) -> AsyncIterator[Served]:
    """The application over a started front end; over the script if no ``link`` is given."""
    script = script or Script()
    if script.answer is not None:
        script.answer_ids = [*tokenizer.encode(script.answer, False), EOS]
    if link is None:
        link = FakeEngine(script, make_info(tokenizer.vocab_size, max_model_len))
    engine = AsyncEngine(
        link,
        tokenizer,
        eos_token_ids=frozenset({EOS}),
        metrics=EngineMetrics(MODEL),
        clock=asyncio.get_running_loop().time,
        guard=guard,
    )
    await engine.start()
    config = config or ServerConfig()
    state = ServerState(
        engine=engine,
        config=config,
        access=Access(config.security, config.limits, clock),
        model_names=(MODEL, "alias/of echo"),
        sinks=sinks,
        generation_defaults=generation_defaults or {},
        chat_template=ChatTemplate(template, tokenizer.special_tokens),
    )
    try:
        yield Served(state, create_app(state), script, link)
    finally:
        await engine.shutdown()
        link.close()


@contextmanager
def listening(
    script: Script,
    tokenizer: Tokenizer,
    *,
    port: int = 0,
    echo: echo_engine.Behaviour | None = None,
    **options: Any,
) -> Iterator[tuple[str, Served]]:
    """(address, parts) of a server in a thread of its own, on a free port if none is given. When
    it ends, it waits 2 seconds at most for clients to leave. With ``echo`` its engine is the echo
    engine, in another thread."""
    ready = threading.Event()
    found: list[Any] = []
    failures: list[BaseException] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            if echo is not None:
                options["link"] = stack.enter_context(echo_engine.engine_thread(echo))
            parts = await stack.enter_async_context(served(script, tokenizer=tokenizer, **options))
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            config = uvicorn.Config(
                parts.app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2
            )
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve([sock]))
            while not server.started:
                await asyncio.sleep(0.005)
            found.extend([f"http://127.0.0.1:{sock.getsockname()[1]}", parts, server])
            ready.set()
            await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="server-under-test")
    thread.start()
    ready.wait(20)
    if failures:
        raise failures[0]
    try:
        yield found[0], found[1]
    finally:
        found[2].should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        if failures:
            raise failures[0]
