from __future__ import annotations

from typing import Any

import pytest
from support.vocabularies import sentencepiece_metadata

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams
from octavo.core.plan import RequestDelta, TokenLogprobs
from octavo.core.request import fork_id
from octavo.front.output import OutputProcessor, Processed
from octavo.front.outputs import CompletionDelta, RequestOutput
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer

EOS = 2
PROMPT = (5, 6, 7)


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1000, **fields})


def _delta(request_id: str = "r", *ids: int, **fields: Any) -> RequestDelta:
    return RequestDelta(request_id=request_id, new_token_ids=ids, **fields)


class Client:
    """One request, fed by hand."""

    def __init__(self, tokenizer: Tokenizer, **params: Any) -> None:
        self.tokenizer = tokenizer
        self.processor = OutputProcessor(tokenizer)
        self.processor.add("r", PROMPT, _params(**params), now_s=10.0, prompt="the prompt")
        self.news: list[CompletionDelta] = []
        self.aborts: list[str] = []
        self.whole: RequestOutput | None = None

    def send(self, *deltas: RequestDelta, now_s: float = 11.0) -> Processed:
        processed = self.processor.process(deltas, now_s)
        self.news += processed.deltas.get("r", [])
        self.aborts += processed.aborts
        self.whole = processed.finished.get("r", self.whole)
        return processed

    def run(self, text: str, tokens_per_step: int = 1, **last: Any) -> RequestOutput:
        """Generates a text, then ends; returns the whole output."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        steps = [ids[i : i + tokens_per_step] for i in range(0, len(ids), tokens_per_step)]
        for step in steps[:-1]:
            self.send(_delta("r", *step))
        self.send(_delta("r", *steps[-1], **(last or {"finish_reason": "length"})))
        assert self.whole is not None
        return self.whole

    @property
    def streamed(self) -> str:
        return "".join(news.text for news in self.news)


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 100])
@pytest.mark.parametrize("text", ["the quick 🧭 fox", "世界 e\u0301", " leading", "x"])
def test_streamed_text_is_the_whole_text(
    tokenizer: Tokenizer, text: str, tokens_per_step: int
) -> None:
    client = Client(tokenizer)
    whole = client.run(text, tokens_per_step)
    assert client.streamed == whole.outputs[0].text == text
    assert [i for news in client.news for i in news.token_ids] == whole.outputs[0].token_ids
    assert whole.outputs[0].finish_reason == client.news[-1].finish_reason == "length"
    assert client.aborts == []


def test_the_last_token_is_text_if_the_output_stopped_for_want_of_more(
    tokenizer: Tokenizer,
) -> None:
    ends = {"finish_reason": "stop"}
    assert Client(tokenizer).run("the fox", **ends).outputs[0].text == "the"
    whole = Client(tokenizer).run("the fox", keeps_last_token=True, **ends)
    assert whole.outputs[0].text == "the fox"


def test_the_whole_output(tokenizer: Tokenizer) -> None:
    client = Client(tokenizer)
    client.send(_delta("r", num_cached_tokens=2, queue_s=0.25), now_s=10.5)
    assert client.news == []
    client.send(_delta("r", *tokenizer.encode("the")), now_s=11.0)
    assert client.news[0].num_cached_tokens == 2
    client.send(_delta("r", *tokenizer.encode(" fox"), finish_reason="length"), now_s=12.5)
    assert client.news[1].num_cached_tokens is None
    whole = client.whole
    assert whole is not None
    assert (whole.request_id, whole.prompt) == ("r", "the prompt")
    assert whole.prompt_token_ids == PROMPT
    assert whole.num_cached_tokens == 2
    assert whole.prompt_logprobs is None
    assert whole.outputs[0].logprobs is None
    assert whole.metrics is not None
    metrics = whole.metrics
    assert (metrics.queue_s, metrics.first_token_s, metrics.total_s) == (0.25, 1.0, 2.5)


def test_a_request_that_ends_without_a_token(tokenizer: Tokenizer) -> None:
    client = Client(tokenizer)
    client.send(_delta("r", finish_reason="abort"), now_s=14.0)
    assert client.whole is not None and client.whole.metrics is not None
    metrics = client.whole.metrics
    assert (metrics.queue_s, metrics.first_token_s, metrics.total_s) == (4.0, 4.0, 4.0)
    assert client.whole.outputs[0].finish_reason == "abort"


def test_finished_requests_are_forgotten(tokenizer: Tokenizer) -> None:
    client = Client(tokenizer)
    assert not client.processor.is_finished("r")
    client.run("the fox")
    assert client.processor.is_finished("r")
    assert client.send(_delta("r", 9)) == Processed()
    with pytest.raises(KeyError):
        client.processor.output("r")
    client.processor.add("r", PROMPT, _params(), now_s=0.0)


def test_an_output_can_be_read_while_it_grows(tokenizer: Tokenizer) -> None:
    client = Client(tokenizer, n=2)
    client.send(_delta("r", *tokenizer.encode("the fox")), _delta("r#1", 9, finish_reason="length"))
    output = client.processor.output("r")
    assert [completion.text for completion in output.outputs] == ["the fox", tokenizer.decode([9])]
    assert output.metrics is None


def test_ids_in_use_are_refused(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add("r", PROMPT, _params(n=2), now_s=0.0)
    for request_id in ("r", "r#1"):
        with pytest.raises(
            InvalidParameter, match=f"request id '{request_id}' is in use"
        ) as caught:
            processor.add(request_id, PROMPT, _params(), now_s=0.0)
        assert caught.value.param == "request_id"


class TestEnd:
    """How an output ends, and what of its last token is shown."""

    def test_the_end_token_is_counted_but_not_shown(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, skip_special_tokens=False)
        whole = client.run("the fox<|im_end|>", finish_reason="stop")
        assert client.streamed == whole.outputs[0].text == "the fox"
        assert whole.outputs[0].token_ids[-1] == EOS
        assert whole.outputs[0].stop_reason is None

    def test_it_is_shown_if_that_was_asked_for(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, skip_special_tokens=False, include_stop_str_in_output=True)
        assert client.run("fox<|im_end|>", finish_reason="stop").outputs[0].text == "fox<|im_end|>"

    def test_a_stop_token_is_named(self, tokenizer: Tokenizer) -> None:
        last = tokenizer.encode("x")[-1]
        client = Client(tokenizer, stop_token_ids=[last])
        whole = client.run("the fox", finish_reason="stop", stop_reason=last)
        assert whole.outputs[0].stop_reason == client.news[-1].stop_reason == last
        assert whole.outputs[0].text == tokenizer.decode(whole.outputs[0].token_ids[:-1])

    def test_half_a_character_at_the_end(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer)
        ids = tokenizer.encode("fox 🧭")[:-1]
        client.send(_delta("r", *ids, finish_reason="length"))
        assert client.whole is not None
        assert client.streamed == client.whole.outputs[0].text == "fox \ufffd"

    def test_what_may_begin_a_stop_string_is_shown_at_the_end(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, stop=["fox!"])
        assert client.run("the fox").outputs[0].text == "the fox"

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_abort_and_error_pass_through(self, tokenizer: Tokenizer, reason: str) -> None:
        client = Client(tokenizer)
        client.send(_delta("r", *tokenizer.encode("the")))
        client.send(_delta("r", finish_reason=reason, error="out of luck"))
        assert client.whole is not None
        completion = client.whole.outputs[0]
        assert (completion.finish_reason, completion.error) == (reason, "out of luck")
        assert completion.text == "the"
        assert client.news[-1].error == "out of luck"
        assert client.aborts == []


class TestStopStrings:
    @pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
    @pytest.mark.parametrize("include", [False, True])
    def test_cut_text_and_abort(
        self, tokenizer: Tokenizer, tokens_per_step: int, include: bool
    ) -> None:
        client = Client(tokenizer, stop=["wn f", "zzz"], include_stop_str_in_output=include)
        ids = tokenizer.encode("the quick brown fox jumps over")
        for i in range(0, len(ids), tokens_per_step):
            client.send(_delta("r", *ids[i : i + tokens_per_step]))
        assert client.whole is not None
        completion = client.whole.outputs[0]
        assert client.streamed == completion.text == "the quick bro" + "wn f" * include
        assert (completion.finish_reason, completion.stop_reason) == ("stop", "wn f")
        assert client.aborts == ["r"]
        # Tokens count up to the one that completes the stop string, however many came at once.
        shortest = next(n for n in range(len(ids)) if "wn f" in tokenizer.decode(ids[:n]))
        assert completion.token_ids == ids[:shortest]

    def test_no_abort_where_the_engine_has_ended(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, stop=["fox"])
        whole = client.run("the fox", finish_reason="length")
        assert (whole.outputs[0].finish_reason, whole.outputs[0].stop_reason) == ("stop", "fox")
        assert client.aborts == []

    def test_logprobs_end_with_the_tokens(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, stop=["fox"], logprobs=0)
        ids = tokenizer.encode("the fox jumps over")
        client.send(_delta("r", *ids, logprobs=tuple(TokenLogprobs(i, -1.0, 1) for i in ids)))
        assert client.whole is not None
        completion = client.whole.outputs[0]
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        assert len(completion.token_ids) < len(ids)

    def test_text_of_the_first_min_tokens_does_not_count(self, tokenizer: Tokenizer) -> None:
        text = "the fox the fox the fox"
        ids = tokenizer.encode(text)
        last_fox = len(tokenizer.encode("the fox the fox the"))
        # The token before completes "the", so " fox" alone is what the third one adds.
        client = Client(tokenizer, stop=["fox"], min_tokens=last_fox)
        whole = client.run(text)
        assert whole.outputs[0].text == "the fox the fox the "
        assert whole.outputs[0].finish_reason == "stop"
        later = Client(tokenizer, stop=["fox"], min_tokens=len(ids))
        assert later.run(text).outputs[0].text == text
        straddling = Client(tokenizer, stop=["the fox"], min_tokens=last_fox)
        assert straddling.run(text).outputs[0].finish_reason == "length"

    def test_a_replacement_character_can_be_a_stop_string(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, stop=["\ufffd"])
        ids = tokenizer.encode("fox 🧭")[:-1]
        client.send(_delta("r", *ids, finish_reason="length"))
        assert client.whole is not None
        assert client.whole.outputs[0].text == "fox "
        assert client.whole.outputs[0].finish_reason == "stop"
        early = Client(tokenizer, stop=["\ufffd"], min_tokens=len(ids))
        early.send(_delta("r", *ids, finish_reason="length"))
        assert early.whole is not None
        assert early.whole.outputs[0].finish_reason == "length"


class TestSeveralCompletions:
    def test_each_learns_how_much_of_its_prompt_was_cached(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, n=2)
        client.send(_delta("r", 9, num_cached_tokens=0), _delta("r#1", 9, num_cached_tokens=2))
        assert [news.num_cached_tokens for news in client.news] == [0, 2]
        # The request as a whole paid for its prompt in the first.
        assert client.processor.output("r").num_cached_tokens == 0

    def test_each_has_its_own_text_and_end(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, n=3, stop=["fox"])
        texts = ("the quick", "the fox", "the lazy dog")
        steps = [tokenizer.encode(text) for text in texts]
        for i in range(max(map(len, steps))):
            client.send(
                *(
                    _delta(
                        fork_id("r", index),
                        ids[i],
                        finish_reason="length" if i == len(ids) - 1 else None,
                    )
                    for index, ids in enumerate(steps)
                    if i < len(ids)
                )
            )
        assert client.whole is not None
        assert [output.index for output in client.whole.outputs] == [0, 1, 2]
        assert [output.text for output in client.whole.outputs] == [texts[0], "the ", texts[2]]
        for index, output in enumerate(client.whole.outputs):
            assert "".join(n.text for n in client.news if n.index == index) == output.text

    def test_unfinished_ones_are_aborted(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, n=3)
        client.send(_delta("r#1", 9, finish_reason="length"))
        assert client.processor.abort("r") == ["r", "r#2"]
        assert client.processor.is_finished("r")
        assert client.processor.abort("r") == []
        assert client.send(_delta("r", 9), _delta("r#2", 9)) == Processed()


class TestLogprobs:
    def test_tokens_come_with_text_and_bytes(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, logprobs=2)
        half = tokenizer.encode("🧭")[0]
        fox = tokenizer.encode(" fox")[0]
        given = TokenLogprobs(half, -2.0, 3, top=((fox, -0.5), (EOS, -1.0)))
        client.send(_delta("r", half, logprobs=(given,), finish_reason="length"))
        (entry,) = client.news[0].logprobs
        raw = tokenizer.token_bytes(half)
        assert entry[:5] == (half, "\ufffd", raw, -2.0, 3)
        assert raw == "🧭".encode()[: len(raw)]
        assert entry.top[0][:5] == (
            fox,
            tokenizer.decode([fox]),
            tokenizer.token_bytes(fox),
            -0.5,
            1,
        )
        assert entry.top[1][:5] == (EOS, "<|im_end|>", b"<|im_end|>", -1.0, 2)
        assert client.whole is not None
        assert client.whole.outputs[0].logprobs == [entry]

    def test_those_of_the_prompt_come_at_once(self, tokenizer: Tokenizer) -> None:
        client = Client(tokenizer, prompt_logprobs=0, n=2)
        first, second = (TokenLogprobs(i, -1.0, 1) for i in PROMPT[1:])
        client.send(_delta("r", prompt_logprobs=(first,)))
        assert client.news == []
        client.send(_delta("r", 9, prompt_logprobs=(second,)), _delta("r#1", 9))
        shown = client.news[0].prompt_logprobs
        assert shown is not None
        assert shown[0] is None
        assert [entry.token_id for entry in shown[1:] if entry is not None] == [6, 7]
        assert client.news[1].prompt_logprobs is None
        client.send(
            _delta("r", 9, finish_reason="length"), _delta("r#1", 9, finish_reason="length")
        )
        assert client.whole is not None
        assert client.whole.prompt_logprobs == list(shown)

    def test_a_prompt_of_one_token_has_none(self, tokenizer: Tokenizer) -> None:
        processor = OutputProcessor(tokenizer)
        processor.add("r", [5], _params(prompt_logprobs=1), now_s=0.0)
        processed = processor.process([_delta("r", 9)], 1.0)
        assert processed.deltas["r"][0].prompt_logprobs == (None,)


def test_text_goes_on_from_the_prompt() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    fox = tokenizer.encode("fox", add_special_tokens=False)
    processor = OutputProcessor(tokenizer)
    processor.add("r", [1, *fox], _params(), now_s=0.0)
    processor.add("bos", [1], _params(), now_s=0.0)
    deltas = [_delta(name, *fox, finish_reason="length") for name in ("r", "bos")]
    finished = processor.process(deltas, 1.0).finished
    assert finished["r"].outputs[0].text == " fox"
    assert finished["bos"].outputs[0].text == "fox"


def test_one_that_cannot_be_decoded_leaves_the_others_alone(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tokenizer)
    for name in ("a", "b", "c"):
        processor.add(name, PROMPT, _params(), now_s=0.0)
    the = tokenizer.encode("the")
    poisoned = RequestDelta(request_id="b", new_token_ids=("no id",))  # type: ignore[arg-type]
    processed = processor.process([_delta("a", *the), poisoned, _delta("c", *the)], 1.0)
    assert [processed.deltas[name][0].text for name in ("a", "c")] == ["the", "the"]
    assert processed.deltas["b"][0].finish_reason == "error"
    assert "could not be decoded: TypeError" in (processed.deltas["b"][0].error or "")
    assert processed.aborts == ["b"]
    assert processed.finished["b"].outputs[0].error == processed.deltas["b"][0].error
    assert not processor.is_finished("a") and not processor.is_finished("c")
    finished = processor.process([_delta("a", *the, finish_reason="length")], 2.0).finished
    assert finished["a"].outputs[0].text == "thethe"


def test_a_panic_of_the_decoder_leaves_the_others_alone(tokenizer: Tokenizer) -> None:
    class Panic(BaseException):
        """As libraries in Rust raise it."""

    class Broken:
        def step(self, *_: object) -> str:
            raise Panic("index out of range")

    processor = OutputProcessor(tokenizer)
    for name in ("a", "b"):
        processor.add(name, PROMPT, _params(), now_s=0.0)
    processor._completions["b"]._decoder = Broken()  # type: ignore[assignment]
    the = tokenizer.encode("the")
    processed = processor.process([_delta("b", *the), _delta("a", *the)], 1.0)
    assert processed.deltas["a"][0].text == "the"
    assert "could not be decoded: Panic" in (processed.deltas["b"][0].error or "")
    assert processed.aborts == ["b"]
