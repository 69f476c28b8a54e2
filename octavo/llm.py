"""The offline façade: prompts in, whole outputs out, in this process.

`LLM` steps the engine in the caller's thread. `AsyncLLM` runs the same engine in a thread of its
own behind an event loop, for callers that stream or abort.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeAlias

from octavo import assemble
from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams, validate_against_vocab
from octavo.core.request import Request
from octavo.core.types import Pooling, RequestId, TokenId
from octavo.front.async_engine import AsyncEngine
from octavo.front.embedding import Embedding, cosine, embedding_of, embedding_params, pairs
from octavo.front.output import OutputProcessor, Processed
from octavo.front.outputs import CompletionDelta, RequestOutput
from octavo.metrics.stats import StepStats
from octavo.timeline.events import StepEvent
from octavo.tokenizer.bad_words import with_bad_words
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[TokenId] | Mapping[str, Any]
"""Text, token ids, or a mapping with ``prompt`` or ``prompt_token_ids``."""

Message: TypeAlias = Mapping[str, Any]
"""One message of a chat, with ``role`` and ``content``."""


class LLM:
    """A model and an engine, for batches of prompts.

    Args:
        model: alias, path or hub id, as on the command line.
        options: any field of the engine's configuration, e.g. ``dtype``, ``max_model_len``,
            ``num_blocks``, ``max_num_batched_tokens``.

    Raises:
        EngineError: an option is wrong, or the model cannot be loaded or does not fit.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        self.config = EngineConfig.from_options(model=model, **options)
        front = assemble.read_front(self.config.model)
        self.tokenizer: Tokenizer = front.tokenizer
        self._eos_token_ids = front.checkpoint.eos_token_ids
        self._defaults = front.generation_defaults
        self._engine, self.info = assemble.build_engine(self.config, tokenizer=self.tokenizer)
        self._outputs = OutputProcessor(self.tokenizer)
        self._ids = count()
        self._seeds = random.Random(self.config.model.seed)
        self.last_stats: StepStats | None = None
        """Of the most recent step."""

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What the model recommends, with changes."""
        return SamplingParams(**{**self._defaults, **changes})

    def check(self, params: SamplingParams) -> None:
        """Refuses parameters that no prompt could be completed with.

        Raises:
            RequestError: names the parameter.
        """
        validate_against_vocab(params, self.info.spec.vocab_size)
        self._engine.prepare(params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Completes prompts; outputs come in the order of the prompts.

        Args:
            sampling_params: one for all prompts, or one for each; the model's defaults if None.
            priorities: one for each prompt; lower is served first under policy ``priority``.
            cache_salt: prompts with another salt share no cached prefix with these.

        Raises:
            RequestError: a prompt or a parameter cannot be served. Nothing has been generated.
        """
        batch = _as_batch(prompts)
        params = self._params_for(batch, sampling_params)
        ranks = list(priorities) if priorities is not None else [0] * len(batch)
        if len(ranks) != len(batch):
            raise InvalidParameter(
                f"priorities has {len(ranks)} items for {len(batch)} prompts", param="priorities"
            )
        ids: list[RequestId] = []
        try:
            for prompt, wanted, priority in zip(batch, params, ranks, strict=True):
                ids.append(self._add(prompt, wanted, priority, cache_salt))
            return self._run(ids, progress)
        except BaseException:
            self._abort(ids)
            raise

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several at once.

        Raises:
            RequestError: the template refuses the messages, or as `generate`.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        prompts = [
            self.render_chat(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, progress=progress)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        cache_salt: str = "",
        progress: bool = True,
    ) -> list[Embedding]:
        """Prompts as vectors of length 1, from the model's final hidden states: those of all tokens
        of a prompt (``mean``) or that of the last one (``last``).

        Raises:
            RequestError: a prompt cannot be served. Nothing has been computed.
            ExecutorError: the engine failed.
        """
        params = embedding_params(pooling)
        outputs = self.generate(prompts, params, cache_salt=cache_salt, progress=progress)
        return [embedding_of(output) for output in outputs]

    def score(
        self,
        first: Prompt | Sequence[Prompt],
        second: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        progress: bool = True,
    ) -> list[float]:
        """How much alike texts are: the cosines of their embeddings, in [-1, 1], of one text with
        each of ``second``, or of each text with its counterpart. Raises as `embed`."""
        left, right = _as_batch(first), _as_batch(second)
        couples = pairs(len(left), len(right))
        found = [e.vector for e in self.embed([*left, *right], pooling=pooling, progress=progress)]
        return [cosine(found[a], found[len(left) + b]) for a, b in couples]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[CompletionDelta]:
        """Completes one prompt, piece by piece; closing the iterator aborts the request.

        Raises:
            RequestError: the prompt or a parameter cannot be served.
        """
        params = _checked(sampling_params or self.default_sampling_params())
        request_id = self._add(prompt, params, priority=0, cache_salt="")
        try:
            while not self._outputs.is_finished(request_id):
                yield from self._step().deltas.get(request_id, ())
        finally:
            self._abort([request_id])

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[TokenId]:
        """The prompt of a conversation, by the model's chat template or another one.

        Raises:
            InvalidParameter: there is no template, or it refuses the messages.
        """
        template = ChatTemplate(
            chat_template or self.tokenizer.chat_template, self.tokenizer.special_tokens
        )
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        self._engine.reset_prefix_cache()

    @contextmanager
    def timeline(self) -> Iterator[list[StepEvent]]:
        """Yields a list to which every step is added until the block is left; for
        `octavo.timeline.chrome.to_chrome`."""
        steps: list[StepEvent] = []
        self._engine.record(steps.append)
        try:
            yield steps
        finally:
            self._engine.stop_recording()

    def _params_for(
        self, batch: Sequence[Prompt], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if given is None:
            given = self.default_sampling_params()
        if not isinstance(given, Sequence):
            given = [given] * len(batch)
        params = [_checked(item) for item in given]
        if len(params) != len(batch):
            raise InvalidParameter(
                f"sampling_params has {len(params)} items for {len(batch)} prompts",
                param="sampling_params",
            )
        return params

    def _add(
        self, prompt: Prompt, params: SamplingParams, priority: int, cache_salt: str
    ) -> RequestId:
        text, token_ids = encode_prompt(prompt, self.tokenizer, self.info.spec.vocab_size)
        self.check(params)
        params = with_bad_words(params, self.tokenizer)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        request_id = f"offline-{next(self._ids)}"
        now = time.monotonic()
        self._engine.add(
            Request(
                request_id=request_id,
                prompt_token_ids=token_ids,
                params=params,
                seed=seed,
                eos_token_ids=self._eos_token_ids,
                priority=priority,
                arrival_s=now,
                cache_salt=cache_salt,
            )
        )
        self._outputs.add(request_id, token_ids, params, now, text)
        return request_id

    def _run(self, ids: list[RequestId], progress: bool) -> list[RequestOutput]:
        finished: dict[RequestId, RequestOutput] = {}
        with _progress_bar(len(ids), progress) as advance:
            while len(finished) < len(ids):
                processed = self._step()
                finished.update(processed.finished)
                advance(len(processed.finished), self.last_stats)
        return [finished[request_id] for request_id in ids]

    def _step(self) -> Processed:
        deltas, self.last_stats = self._engine.step()
        processed = self._outputs.process(deltas, time.monotonic())
        if processed.aborts:
            self._engine.abort(processed.aborts)
        return processed

    def _abort(self, ids: list[RequestId]) -> None:
        for request_id in ids:
            self._engine.abort(self._outputs.abort(request_id))


def encode_prompt(
    prompt: Any, tokenizer: Tokenizer, vocab_size: int
) -> tuple[str | None, tuple[TokenId, ...]]:
    """(text if it was given as text, token ids).

    Raises:
        InvalidParameter: it is neither text nor token ids of this model.
    """
    if isinstance(prompt, Mapping):
        known = [key for key in ("prompt_token_ids", "prompt") if key in prompt]
        if not known:
            raise InvalidParameter(
                f"prompt has the keys {sorted(prompt)}: give prompt or prompt_token_ids",
                param="prompt",
            )
        prompt = prompt[known[0]]
    if isinstance(prompt, str):
        return prompt, tuple(tokenizer.encode(prompt))
    ids = tuple(prompt)
    wrong = next((i for i in ids if not isinstance(i, int) or not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise InvalidParameter(
            f"prompt has the token id {wrong!r}: this model's are 0 to {vocab_size - 1}",
            param="prompt",
        )
    return None, ids


def _checked(params: Any) -> SamplingParams:
    if isinstance(params, SamplingParams):
        return params
    remedy = "SamplingParams(**it)" if isinstance(params, Mapping) else "SamplingParams"
    raise InvalidParameter(
        f"sampling_params is a {type(params).__name__}: use {remedy}", param="sampling_params"
    )


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several."""
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Any]:
    """Yields a function (requests finished, stats of the step) that moves the bar."""
    if not shown:
        yield lambda _finished, _stats: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    began, tokens = time.monotonic(), 0
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def advance(finished: int, stats: StepStats) -> None:
            nonlocal tokens
            tokens += stats.num_generated_tokens
            rate = tokens / max(time.monotonic() - began, 1e-9)
            bar.update(task, advance=finished, rate=f"{rate:,.1f} tokens/s")

        yield advance


class AsyncLLM:
    """The same engine behind an event loop: many requests at a time, streamed or whole.

    ::

        async with await AsyncLLM.start("smollm2") as llm:
            async for deltas in llm.generate("Once upon a time", SamplingParams(max_tokens=64)):
                ...

    Cancelling a task or closing an iterator aborts its request at once.
    """

    def __init__(
        self, engine: AsyncEngine, front: assemble.FrontModel, thread: threading.Thread
    ) -> None:
        self.engine = engine
        self._thread = thread
        self.tokenizer = front.tokenizer
        self._defaults = front.generation_defaults
        self._chat_template = ChatTemplate(
            front.tokenizer.chat_template, front.tokenizer.special_tokens
        )

    @classmethod
    async def start(cls, model: str = "smollm2", **options: Any) -> AsyncLLM:
        """Loads the model in a thread; arguments as for `LLM`.

        Raises:
            EngineError: an option is wrong, or the model cannot be loaded or does not fit.
        """
        config = EngineConfig.from_options(model=model, **options)
        front = assemble.read_front(config.model)
        thread, link = assemble.start_engine_thread(config)
        engine = assemble.make_async_engine(link, front, model)
        llm = cls(engine, front, thread)
        try:
            await engine.start()
        except BaseException:
            await llm.shutdown()
            raise
        return llm

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What the model recommends, with changes."""
        return SamplingParams(**{**self._defaults, **changes})

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[list[CompletionDelta]]:
        """Streams the completions of a prompt; ``options`` as for `AsyncEngine.generate`."""
        _, token_ids = encode_prompt(prompt, self.tokenizer, self.engine.info.spec.vocab_size)
        params = _checked(params or self.default_sampling_params())
        return self.engine.generate(token_ids, params, **options)

    async def complete(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """The completions of a prompt, whole."""
        _, token_ids = encode_prompt(prompt, self.tokenizer, self.engine.info.spec.vocab_size)
        params = _checked(params or self.default_sampling_params())
        return await self.engine.complete(token_ids, params, **options)

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """The answer to a conversation, whole."""
        text = self._chat_template.render(messages, add_generation_prompt=True)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return await self.complete(token_ids, params, **options)

    async def shutdown(self) -> None:
        """Ends everything in flight, and the engine; returns when its thread has ended."""
        await self.engine.shutdown()
        await asyncio.to_thread(self._thread.join)
