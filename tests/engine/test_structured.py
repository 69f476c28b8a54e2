"""Structured output through the whole engine: the form holds, and the tokens do not depend on
company, chunks, caches or preemptions."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.checkpoints import VOCAB_SIZE

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.core.errors import InvalidParameter
from octavo.core.params import Structured
from octavo.front.outputs import CompletionOutput
from octavo.grammar.matcher import Matcher
from octavo.grammar.store import GrammarStore
from octavo.sampling.masks import MaskFiller

Make = Callable[..., LLM]
NAME = Structured.json(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [1, 22, 333]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
FORMS = [
    NAME,
    Structured.regex(r"[a-f]{3,20}-\d+(\.\d{2})?z"),
    Structured.choice(["sixteen tokens in a block", "sixteen tokens", "page after page", "ü"]),
    Structured.grammar('start: item ("," item)*\nitem: /[a-z]{2,9}/ | "(" start ")"'),
    None,
]


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


def params(structured: Structured | None, **options: Any) -> SamplingParams:
    defaults = {"temperature": 1.0, "seed": 5, "max_tokens": 40, "logprobs": 2}
    return SamplingParams(structured=structured, **{**defaults, **options})


LENGTHS = (1, 15, 16, 33, 70)
WORK = [(prompt(length), params(form)) for length in LENGTHS for form in FORMS]
WORK += [(prompt(20), params(form, temperature=0, ignore_eos=True)) for form in FORMS]


def seen(llm: LLM, completion: CompletionOutput) -> Any:
    """All that a client sees of an answer; with native kernels to the last bit."""
    is_exact = llm.info.attention_backend.startswith("native")
    logprobs = [(lp.logprob, lp.rank) for lp in completion.logprobs or ()] if is_exact else []
    return completion.text, completion.token_ids, completion.finish_reason, logprobs


def run(llm: LLM, work: list[tuple[list[int], SamplingParams]]) -> list[Any]:
    prompts, wanted = zip(*work, strict=True)
    outputs = llm.generate(list(prompts), list(wanted), progress=False)
    assert all(output.outputs[0].error is None for output in outputs)
    return [seen(llm, output.outputs[0]) for output in outputs]


@pytest.fixture(scope="module")
def known() -> dict[str, list[Any]]:
    return {}


@pytest.fixture
def alone(make_llm: Make, kernels: str, known: dict[str, list[Any]]) -> list[Any]:
    """Each request by itself, with nothing cached."""
    if kernels not in known:
        llm = make_llm(enable_prefix_caching=False)
        known[kernels] = [run(llm, [one])[0] for one in WORK]
    return known[kernels]


def test_the_form_holds(alone: list[Any]) -> None:
    checks: dict[Structured | None, Callable[[str], object]] = {
        FORMS[0]: json.loads,
        FORMS[1]: re.compile(FORMS[1].value).fullmatch,
        FORMS[2]: json.loads(FORMS[2].value).__contains__,
        FORMS[3]: re.compile(r"[a-z,()]+").fullmatch,
        None: lambda text: True,
    }
    finished = {form: 0 for form in FORMS}
    for (_, wanted), (text, token_ids, reason, _) in zip(WORK, alone, strict=True):
        if reason == "stop":
            assert checks[wanted.structured](text), text
            finished[wanted.structured] += 1
        else:
            assert (reason, len(token_ids)) == ("length", wanted.max_tokens)
    assert finished[FORMS[2]] == len(LENGTHS) + 1, "a choice ends in time"
    assert finished[FORMS[0]] and finished[FORMS[1]]


def test_company_does_not_matter(make_llm: Make, alone: list[Any]) -> None:
    assert run(make_llm(), WORK) == alone


def test_chunks_do_not_matter(make_llm: Make, alone: list[Any]) -> None:
    assert run(make_llm(max_num_batched_tokens=7, max_num_seqs=4), WORK) == alone


def test_a_warm_cache_does_not_matter(make_llm: Make, alone: list[Any]) -> None:
    llm = make_llm()
    run(llm, WORK)
    assert run(llm, WORK) == alone


def test_preemption_does_not_matter(make_llm: Make, alone: list[Any]) -> None:
    llm = make_llm(num_blocks=12, max_model_len=160, max_num_seqs=8)
    ids = [llm._add(one, wanted, 0, "") for one, wanted in WORK]
    finished, preemptions = {}, 0
    while len(finished) < len(WORK):
        finished.update(llm._step().finished)
        preemptions += llm.last_stats.num_preemptions
    assert preemptions > 3
    assert [seen(llm, finished[name].outputs[0]) for name in ids] == alone


def test_forks_equal_separate_requests(make_llm: Make) -> None:
    llm = make_llm()
    (forked,) = llm.generate([prompt(20)], params(NAME, n=3), progress=False)
    separate = run(make_llm(), [(prompt(20), params(NAME, seed=5 + i)) for i in range(3)])
    assert [seen(llm, completion) for completion in forked.outputs] == separate
    assert len({one[0] for one in separate}) == 3


def test_what_is_complete_ends_at_once_and_is_whole(make_llm: Make) -> None:
    llm = make_llm()
    for options in ({}, {"ignore_eos": True}, {"min_tokens": 30}, {"max_tokens": 2}):
        wanted = params(Structured.regex("ab"), **{"max_tokens": 40, **options})
        (output,) = llm.generate([prompt(5)], wanted, progress=False)
        completion = output.outputs[0]
        assert (completion.text, completion.finish_reason) == ("ab", "stop"), options
        assert completion.stop_reason is None


def test_stop_strings_and_limits_cut_it(make_llm: Make) -> None:
    llm, form = make_llm(), Structured.regex("a{5}b{50}")
    (output,) = llm.generate([prompt(5)], params(form, stop="bb", max_tokens=50), progress=False)
    assert output.outputs[0].text == "aaaaa" and output.outputs[0].stop_reason == "bb"
    (output,) = llm.generate([prompt(5)], params(form, max_tokens=3), progress=False)
    assert output.outputs[0].finish_reason == "length"
    assert "aaaaabbb".startswith(output.outputs[0].text[:8])


def test_contradictions_end_their_request_alone(make_llm: Make) -> None:
    llm = make_llm()
    x = llm.tokenizer.encode("x")
    hopeless = params(Structured.regex("a+"), allowed_token_ids=x)
    others = [(prompt(9), params(None)), (prompt(9), params(NAME))]
    outputs = llm.generate(
        [prompt(9), prompt(5), prompt(9)], [params(None), hopeless, params(NAME)], progress=False
    )
    assert outputs[1].outputs[0].finish_reason == "error"
    assert "structured output allows next" in outputs[1].outputs[0].error
    assert [seen(llm, outputs[i].outputs[0]) for i in (0, 2)] == run(make_llm(), others)


def test_what_may_end_ends_where_nothing_else_is_allowed(make_llm: Make) -> None:
    llm = make_llm()
    a = llm.tokenizer.encode("a")
    form = params(Structured.regex("a{3}b*"), allowed_token_ids=a)
    (output,) = llm.generate([prompt(5)], form, progress=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("aaa", "stop")


@pytest.mark.parametrize("where", ["consume", "mask", "matcher"])
def test_a_fault_in_one_grammar_is_no_others(
    make_llm: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    bad = Structured.regex("q{30}")
    work = [(prompt(n), params(form)) for n, form in ((9, None), (12, NAME), (7, FORMS[1]))]
    expected = run(make_llm(), work)
    llm = make_llm()
    broken: list[Matcher] = []
    made = GrammarStore.matcher

    def matcher(self: GrammarStore, structured: Structured, output: Any) -> Matcher:
        if structured == bad and where == "matcher":
            raise RuntimeError("a bug on purpose")
        found = made(self, structured, output)
        if structured == bad:
            broken.append(found)
        return found

    def consume(self: Matcher, token_ids: Any) -> None:
        if self in broken and where == "consume":
            token_ids = llm.tokenizer.encode("not so")
        original_consume(self, token_ids)

    def compute(self: MaskFiller, matchers: Any, masks: Any) -> None:
        if where == "mask" and any(one in broken for one in matchers):
            raise RuntimeError("a bug on purpose")
        original_compute(self, matchers, masks)

    original_consume, original_compute = Matcher.consume, MaskFiller._compute
    monkeypatch.setattr(GrammarStore, "matcher", matcher)
    monkeypatch.setattr(Matcher, "consume", consume)
    monkeypatch.setattr(MaskFiller, "_compute", compute)
    work.insert(1, (prompt(11), params(bad)))
    outputs = llm.generate([one for one, _ in work], [wanted for _, wanted in work], progress=False)
    failed = outputs.pop(1).outputs[0]
    assert failed.finish_reason == "error" and "structured output" in failed.error
    assert [seen(llm, output.outputs[0]) for output in outputs] == expected


def test_a_wrong_grammar_is_refused_before_anything_is_generated(make_llm: Make) -> None:
    llm = make_llm()
    for wrong in (
        Structured.regex("(a"),
        Structured.json({"type": "wrong"}),
        Structured.json("{"),
        Structured.grammar("start: nothing"),
        Structured.choice(["\ud800"]),
    ):
        with pytest.raises(InvalidParameter, match="cannot be used") as caught:
            llm.generate([prompt(3), prompt(4)], [params(None), params(wrong)], progress=False)
        assert caught.value.param == "structured"
        assert not llm._engine.has_work


def test_behind_an_event_loop(tiny_model: Any) -> None:
    """The engine compiles beside its steps: others go on, and what is wrong is refused."""

    async def main() -> None:
        async with await AsyncLLM.start(str(tiny_model), num_blocks=64, num_threads=1) as llm:
            plain = llm.complete("hello", params(None))
            shaped = llm.complete("hello", params(NAME, n=2))
            wrong = llm.complete("hello", params(Structured.regex("(")))
            gone = asyncio.create_task(llm.complete("hello", params(Structured.regex("[ab]+"))))
            await asyncio.sleep(0)
            gone.cancel()
            found = await asyncio.gather(plain, shaped, wrong, gone, return_exceptions=True)
            assert found[0].outputs[0].finish_reason in ("stop", "length")
            for completion in found[1].outputs:
                assert completion.finish_reason == "length" or json.loads(completion.text)
            assert isinstance(found[2], InvalidParameter) and found[2].param == "structured"
            assert isinstance(found[3], asyncio.CancelledError)
            text = ""
            async for deltas in llm.generate("hello", params(Structured.choice(["sixteen"]))):
                text += "".join(delta.text for delta in deltas)
            assert text == "sixteen"

    asyncio.run(main())
