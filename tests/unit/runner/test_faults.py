"""What goes wrong for one request, wherever it does, is an error of that request alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.stepping import Stepper, make_runner
from support.tiny_models import tiny_decoder

from octavo.core.errors import ExecutorError
from octavo.core.params import SamplingParams
from octavo.core.plan import RowResult
from octavo.runner import model_runner
from octavo.sampling import pipeline
from octavo.sampling.state import RequestSampling

SICK = SamplingParams(temperature=1.0, max_tokens=None, logprobs=1, top_k=77)
COMPANY = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=None, logprobs=2),
    "random": SamplingParams(temperature=1.0, top_p=0.9, max_tokens=None, prompt_logprobs=1),
    "biased": SamplingParams(
        temperature=0.5, max_tokens=None, logit_bias={3: 2.0}, presence_penalty=0.5, min_tokens=50
    ),
    "choosy": SamplingParams(
        temperature=0.0,
        max_tokens=None,
        allowed_token_ids=tuple(range(60)),
        bad_words_token_ids=((5,),),
    ),
}
NUM_STEPS = 8


class Panic(BaseException):
    """As libraries in Rust raise it."""


Break = Callable[[pytest.MonkeyPatch, type[BaseException]], None]


def is_sick(state: RequestSampling) -> bool:
    return state.params.top_k == 77 and len(state.output_token_ids) >= 2


def break_step(steps: str, number: int) -> Break:
    """One step of the pipeline fails for a batch with the sick request in it."""

    def apply_to(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
        step = getattr(pipeline, steps)[number]

        def apply(logits: torch.Tensor, states: Any) -> None:
            if any(is_sick(state) for state in states):
                raise kind("on purpose")
            healthy = [row for row, state in enumerate(states) if step.wants(state)]
            if healthy:
                part = logits[healthy]
                step.apply(part, [states[row] for row in healthy])
                logits[healthy] = part

        broken = pipeline.Step(lambda state: step.wants(state) or is_sick(state), apply)
        changed = list(getattr(pipeline, steps))
        changed[number] = broken
        monkeypatch.setattr(pipeline, steps, tuple(changed))

    return apply_to


def break_call(module: Any, name: str, concerns: Callable[..., bool]) -> Break:
    """A function fails when a call concerns the sick request."""

    def apply_to(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
        right = getattr(module, name)

        def wrong(*args: Any, **options: Any) -> Any:
            if concerns(*args):
                raise kind("on purpose")
            return right(*args, **options)

        monkeypatch.setattr(module, name, wrong)

    return apply_to


PLACES: dict[str, Break] = {
    **{f"step {n}": break_step("STEPS", n) for n in range(len(pipeline.STEPS))},
    "temperature": break_step("RANDOM_STEPS", 0),
    "draw": break_call(pipeline, "draw", lambda _logits, states: any(map(is_sick, states))),
    "logprobs": break_call(
        pipeline, "_logprobs", lambda _logits, _ids, states: any(map(is_sick, states))
    ),
    "append": break_call(RequestSampling, "append", lambda state, _token: is_sick(state)),
}


@pytest.fixture(scope="module")
def model():
    return tiny_decoder()


def prompt_of(name: str) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(97) for _ in range(10 + len(name))]


def run(model: Any, *, with_sick: SamplingParams | None) -> tuple[dict[str, list[Any]], list[str]]:
    """Results of the company by step, and the errors of the sick one; it is released then."""
    stepper = Stepper(make_runner(model, max_num_seqs=len(COMPANY) + 1))
    for name, params in COMPANY.items():
        stepper.add(name, prompt_of(name), params=params)
    if with_sick is not None:
        stepper.add("sick", prompt_of("sick"), params=with_sick)
    results: dict[str, list[Any]] = {name: [] for name in COMPANY}
    errors = []
    for _ in range(NUM_STEPS):
        counts = {
            name: len(known) - stepper.computed[name] for name, known in stepper.known.items()
        }
        for name, row in stepper.step(counts).items():
            if name in results:
                assert row.error is None
                results[name].append(row)
            elif row.error is not None:
                assert row.token_ids == ()
                errors.append(row.error)
                stepper.release(name)
                del stepper.known[name]
    return results, errors


@pytest.fixture(scope="module")
def expected(model: Any) -> dict[str, list[RowResult]]:
    results, errors = run(model, with_sick=None)
    assert errors == []
    return results


@pytest.mark.parametrize("kind", [ValueError, Panic])
@pytest.mark.parametrize("place", PLACES)
def test_sampling_that_fails_for_one(
    model: Any,
    expected: dict[str, list[RowResult]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    kind: type[BaseException],
) -> None:
    PLACES[place](monkeypatch, kind)
    results, errors = run(model, with_sick=SICK)
    assert results == expected
    (error,) = errors
    assert f"{kind.__name__}: on purpose" in error
    assert "Traceback" in caplog.text  # for whoever has to mend it


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_prompt_scores_that_fail_for_one(
    model: Any,
    expected: dict[str, list[RowResult]],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    wrong = break_call(model_runner, "prompt_logprobs", lambda _l, _ids, num_top: num_top == 7)
    wrong(monkeypatch, kind)
    results, errors = run(model, with_sick=replace(SICK, top_k=0, prompt_logprobs=7))
    assert results == expected
    (error,) = errors
    assert f"{kind.__name__}: on purpose" in error


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_admission_that_fails_for_one(
    model: Any,
    expected: dict[str, list[RowResult]],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    right = RequestSampling.__init__

    def wrong(self: RequestSampling, params: SamplingParams, **options: Any) -> None:
        if params.top_k == 77:
            raise kind("on purpose")
        right(self, params, **options)

    monkeypatch.setattr(RequestSampling, "__init__", wrong)
    results, errors = run(model, with_sick=SICK)
    assert results == expected
    (error,) = errors
    assert f"{kind.__name__}: on purpose" in error


def test_a_request_that_is_not_admitted_costs_no_seat(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = Stepper(make_runner(model, max_num_seqs=1))
    with monkeypatch.context() as patch:
        patch.setattr(RequestSampling, "__init__", lambda *_args, **_options: 1 / 0)
        for name in ("a", "b", "c"):
            stepper.add(name, [1, 2, 3])
            (row,) = stepper.run(stepper.plan({name: 3})).rows
            assert row.error is not None
            stepper.release(name)
    stepper.add("healthy", [1, 2, 3])
    (row,) = stepper.run(stepper.plan({"healthy": 3})).rows
    assert row.error is None and len(row.token_ids) == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("std::bad_alloc"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out_ends_the_step_alone(
    model: Any, expected: dict[str, list[RowResult]], monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    """The requests of the step are lost; those that were not in it go on as if nothing was."""
    stepper = Stepper(make_runner(model, max_num_seqs=len(COMPANY)))
    for name, params in COMPANY.items():
        stepper.add(name, prompt_of(name), params=params)
    counts = {name: len(known) for name, known in stepper.known.items()}
    lost = [name for name in counts if name != "random"]
    first = stepper.step(counts)["random"]

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", fail)
        stepper.runner.submit(stepper.plan(dict.fromkeys(lost, 1)))
        with pytest.raises(ExecutorError, match=rf"step 1 .*{type(error).__name__}"):
            stepper.runner.collect()
    for name in lost:
        stepper.release(name)
    rows = [first, *(stepper.step({"random": 1})["random"] for _ in range(NUM_STEPS - 1))]
    assert rows == expected["random"]


@pytest.mark.parametrize("kind", [RuntimeError, IndexError])
def test_a_model_that_fails_in_another_way_is_not_trusted_again(
    model: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("on purpose")

    stepper = Stepper(make_runner(model))
    stepper.add("a", [1, 2, 3])
    monkeypatch.setattr(model, "forward", fail)
    stepper.runner.submit(stepper.plan({"a": 3}))
    with pytest.raises(kind, match="on purpose"):
        stepper.runner.collect()
