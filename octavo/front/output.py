"""What engine steps produced, as text for clients: one synchronous loop over a step's deltas.

Owns decoding, stop strings, log-probabilities with text, and the assembly of whole outputs. Both
the offline API and the asynchronous server run this code, so that a stream and a whole output
cannot differ. Knows nothing of transport or of HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta, TokenLogprobs
from octavo.core.request import fork_id
from octavo.core.types import RequestId, TokenId
from octavo.front.outputs import (
    CompletionDelta,
    CompletionOutput,
    DecodedLogprob,
    RequestMetrics,
    RequestOutput,
)
from octavo.front.stop import StopMatcher
from octavo.tokenizer.incremental import incremental_decoder
from octavo.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What one step means for clients."""

    deltas: dict[RequestId, list[CompletionDelta]] = field(default_factory=dict)
    """News by client request, in the order of the engine's deltas."""
    finished: dict[RequestId, RequestOutput] = field(default_factory=dict)
    """Requests whose last completion has ended, whole. They are forgotten."""
    aborts: list[RequestId] = field(default_factory=list)
    """Engine ids that need not run on: a stop string was found, or decoding failed."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A client's request and what has come of it."""

    output: RequestOutput
    params: SamplingParams
    arrival_s: float
    num_open: int
    """Completions that have not ended."""
    prompt_logprobs: list[DecodedLogprob | None] = field(default_factory=lambda: [None])
    queue_s: float | None = None
    first_token_s: float | None = None


class _Completion:
    """One completion while it runs."""

    __slots__ = (
        "_decoder",
        "_stop",
        "engine_id",
        "num_cached_tokens",
        "output",
        "queue_s",
        "request",
        "texts",
    )

    def __init__(
        self, request: _Request, engine_id: RequestId, index: int, tokenizer: Tokenizer
    ) -> None:
        params = request.params
        self.request = request
        self.engine_id = engine_id
        self.output = CompletionOutput(
            index=index, logprobs=None if params.logprobs is None else []
        )
        self.texts: list[str] = []
        """The output's text so far, in pieces; joined when someone asks for it."""
        self.num_cached_tokens: int | None = None
        """Known, but not yet told to the client."""
        self.queue_s: float | None = None
        """As `num_cached_tokens`."""
        self._decoder = incremental_decoder(
            tokenizer,
            request.output.prompt_token_ids,
            params.skip_special_tokens,
            params.spaces_between_special_tokens,
            params.shown_special_token_ids,
        )
        self._stop = (
            StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the text."""
        return None if self._stop is None else self._stop.matched

    def decode(self, token_ids: Sequence[TokenId]) -> tuple[str, int]:
        """New text, and how many of the tokens count: those up to the end of a stop string."""
        stop = self._stop
        if stop is None:
            return self._decoder.step(token_ids), len(token_ids)
        text = ""
        num_tokens = len(self.output.token_ids)
        for i, token_id in enumerate(token_ids, 1):
            piece = self._decoder.step((token_id,))
            # Text of the first min_tokens tokens cannot be part of a stop string.
            text += stop.feed(piece) if num_tokens + i > self.request.params.min_tokens else piece
            if stop.matched is not None:
                return text, i
        return text, len(token_ids)

    def rest(self, num_tokens: int) -> str:
        """The text still held back when the output has ended after ``num_tokens`` tokens."""
        text = self._decoder.flush()
        stop = self._stop
        if stop is None or num_tokens <= self.request.params.min_tokens:
            return text
        return stop.feed(text) + stop.flush()


class _Spellings(dict[TokenId, tuple[str, bytes]]):
    """Text and bytes of single tokens, filled on first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: TokenId) -> tuple[str, bytes]:
        raw = self._tokenizer.token_bytes(token_id)
        spelling = self[token_id] = (raw.decode("utf-8", "replace"), raw)
        return spelling


class OutputProcessor:
    """Turns engine deltas into client outputs for all requests in flight. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[RequestId, _Request] = {}
        self._completions: dict[RequestId, _Completion] = {}
        self._spellings = _Spellings(tokenizer)

    def add(
        self,
        request_id: RequestId,
        prompt_token_ids: Sequence[TokenId],
        params: SamplingParams,
        now_s: float,
        prompt: str | None = None,
    ) -> None:
        """Expects the ``params.n`` completions of a client's request from now on.

        Raises:
            InvalidParameter: the id is in use.
        """
        engine_ids = [fork_id(request_id, index) for index in range(params.n)]
        used = next((i for i in engine_ids if i in self._completions), None)
        if used is not None or request_id in self._requests:
            raise InvalidParameter(
                f"request id {used or request_id!r} is in use: choose another", param="request_id"
            )
        request = _Request(
            output=RequestOutput(
                request_id=request_id,
                prompt=prompt,
                prompt_token_ids=tuple(prompt_token_ids),
                outputs=[],
            ),
            params=params,
            arrival_s=now_s,
            num_open=params.n,
        )
        completions = [
            _Completion(request, engine_id, index, self._tokenizer)
            for index, engine_id in enumerate(engine_ids)
        ]
        request.output.outputs = [completion.output for completion in completions]
        self._requests[request_id] = request
        self._completions.update(zip(engine_ids, completions, strict=True))

    def process(self, deltas: Sequence[RequestDelta], now_s: float) -> Processed:
        """Takes in what a step produced. Deltas of completions that have ended are ignored; one
        that cannot be decoded ends with an error and leaves the others alone."""
        processed = Processed()
        for delta in deltas:
            completion = self._completions.get(delta.request_id)
            if completion is None:
                continue
            try:
                news = self._advance(completion, delta, now_s)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # whatever it is, it concerns this completion alone
                logger.error("request %s cannot be decoded", delta.request_id, exc_info=error)
                news = CompletionDelta(
                    index=completion.output.index,
                    finish_reason="error",
                    error=f"the output could not be decoded: {type(error).__name__}: {error}",
                )
            if news is None:
                continue
            request_id = completion.request.output.request_id
            processed.deltas.setdefault(request_id, []).append(news)
            if news.finish_reason is not None:
                if delta.finish_reason is None:
                    processed.aborts.append(completion.engine_id)
                self._end(completion, news, now_s, processed)
        return processed

    def abort(self, request_id: RequestId) -> list[RequestId]:
        """Forgets a client's request; returns the engine ids that still run for it."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        engine_ids = [fork_id(request_id, index) for index in range(request.params.n)]
        return [i for i in engine_ids if self._completions.pop(i, None) is not None]

    def is_finished(self, request_id: RequestId) -> bool:
        """Whether nothing more is expected for this request; true for unknown ones."""
        return request_id not in self._requests

    def output(self, request_id: RequestId) -> RequestOutput:
        """What a request in flight has produced so far; it goes on changing.

        Raises:
            KeyError: the request is unknown, or has finished and is forgotten.
        """
        request = self._requests[request_id]
        for index in range(request.params.n):
            completion = self._completions.get(fork_id(request_id, index))
            if completion is not None:
                completion.output.text = "".join(completion.texts)
        return request.output

    def _advance(
        self, completion: _Completion, delta: RequestDelta, now_s: float
    ) -> CompletionDelta | None:
        """Takes in one delta; None if there is nothing to tell the client yet."""
        request, output = completion.request, completion.output
        token_ids = delta.new_token_ids
        prompt_logprobs = self._take_note(completion, delta, now_s)
        finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
        if (
            not token_ids
            and finish_reason is None
            and prompt_logprobs is None
            and delta.embedding is None
        ):
            return None
        # The token that ends the output is not part of the text, unless that was asked for.
        hides_last = finish_reason == "stop" and not (
            delta.keeps_last_token or request.params.include_stop_str_in_output
        )
        text, num_counted = completion.decode(token_ids[:-1] if hides_last else token_ids)
        if completion.stop_string is not None:
            token_ids = token_ids[:num_counted]
        elif finish_reason is not None:
            text += completion.rest(len(output.token_ids) + len(token_ids))
        error = delta.error
        if completion.stop_string is not None:
            finish_reason, stop_reason, error = "stop", completion.stop_string, None
        logprobs: tuple[DecodedLogprob, ...] = ()
        if output.logprobs is not None:
            logprobs = tuple([self._decoded(lp) for lp in delta.logprobs[: len(token_ids)]])
            output.logprobs.extend(logprobs)
        output.token_ids.extend(token_ids)
        completion.texts.append(text)
        num_cached, completion.num_cached_tokens = completion.num_cached_tokens, None
        queue_s, completion.queue_s = completion.queue_s, None
        return CompletionDelta(
            index=output.index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            embedding=delta.embedding,
            num_cached_tokens=num_cached,
            queue_s=queue_s,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=error,
        )

    def _take_note(
        self, completion: _Completion, delta: RequestDelta, now_s: float
    ) -> tuple[DecodedLogprob | None, ...] | None:
        """Records times and what concerns the prompt; returns the prompt's log-probabilities with
        the delta that makes them complete."""
        request, output = completion.request, completion.request.output
        if delta.num_cached_tokens is not None:
            completion.num_cached_tokens = delta.num_cached_tokens
            if completion.output.index == 0:
                output.num_cached_tokens = delta.num_cached_tokens
        if delta.queue_s is not None:
            completion.queue_s = delta.queue_s
            if request.queue_s is None:
                request.queue_s = delta.queue_s
        if delta.embedding is not None:
            output.embedding = delta.embedding
        if request.first_token_s is None and delta.new_token_ids:
            request.first_token_s = now_s - request.arrival_s
        wanted = request.params.prompt_logprobs is not None and output.prompt_logprobs is None
        if not wanted or completion.output.index != 0:
            return None
        found = request.prompt_logprobs
        found.extend([self._decoded(logprobs) for logprobs in delta.prompt_logprobs])
        if len(found) < len(output.prompt_token_ids):
            return None
        output.prompt_logprobs = found
        return tuple(found)

    def _end(
        self, completion: _Completion, news: CompletionDelta, now_s: float, processed: Processed
    ) -> None:
        request, output = completion.request, completion.output
        output.text = "".join(completion.texts)
        output.finish_reason = news.finish_reason
        output.stop_reason = news.stop_reason
        output.error = news.error
        del self._completions[completion.engine_id]
        request.num_open -= 1
        if request.num_open:
            return
        total_s = now_s - request.arrival_s
        request.output.metrics = RequestMetrics(
            queue_s=total_s if request.queue_s is None else request.queue_s,
            first_token_s=total_s if request.first_token_s is None else request.first_token_s,
            total_s=total_s,
        )
        request_id = request.output.request_id
        del self._requests[request_id]
        processed.finished[request_id] = request.output

    def _decoded(self, logprobs: TokenLogprobs) -> DecodedLogprob:
        """Adds the tokens' text and bytes."""
        spellings, token_id = self._spellings, logprobs.token_id
        top = [
            DecodedLogprob(other, *spellings[other], logprob, rank)
            for rank, (other, logprob) in enumerate(logprobs.top, 1)
        ]
        return DecodedLogprob(
            token_id, *spellings[token_id], logprobs.logprob, logprobs.rank, tuple(top)
        )
