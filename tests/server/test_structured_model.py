"""Structured output from the embedded model, through the real `openai` client and all processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import openai
import psutil
import pytest
from pydantic import BaseModel, Field
from support.serving import Serving, served_model

pytestmark = pytest.mark.real_model


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    name: str = Field(max_length=12)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    likes: Colour
    pets: list[Pet] = Field(max_length=2)


ASK: Any = [{"role": "user", "content": "Ann is 30, likes red, and has a cat called Tom. As JSON:"}]


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with served_model() as serving:
        yield serving


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="smollm2", messages=ASK, response_format=Person, temperature=0, max_tokens=150
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    assert choice.message.parsed.age == 30


def test_a_pydantic_model_is_parsed_from_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="smollm2", messages=ASK, response_format=Person, temperature=0, max_tokens=150
    ) as stream:
        found = stream.get_final_completion()
    assert isinstance(found.choices[0].message.parsed, Person)


def test_every_completion_has_the_form_and_its_raw_log_probabilities(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=ASK,
        n=3,
        seed=1,
        stream=True,
        logprobs=True,
        top_logprobs=2,
        extra_body={"structured_outputs": {"regex": r"(cat|dog)s? \d{2}"}},
    )
    texts, ends, logprobs = [""] * 3, {}, []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
            logprobs += (choice.logprobs and choice.logprobs.content) or []
    assert all(re.fullmatch(r"(cat|dog)s? \d{2}", text) for text in texts), texts
    assert ends == {0: "stop", 1: "stop", 2: "stop"}
    assert any(entry.top_logprobs[0].token not in "".join(texts) for entry in logprobs)
    assert any(entry.logprob < -3 for entry in logprobs), "unlikely tokens keep their logprob"


def test_choices_and_grammars_and_cut_answers(client: openai.OpenAI) -> None:
    def complete(max_tokens: int = 40, **form: Any) -> Any:
        return client.completions.create(
            model="smollm2",
            prompt="The answer is",
            temperature=0,
            max_tokens=max_tokens,
            extra_body={"structured_outputs": form},
        ).choices[0]

    assert complete(choice=["maybe", "never"]).text in ("maybe", "never")
    gbnf = 'root ::= "x = " num (" + " num){2}\nnum ::= [0-9]{1,3}'
    assert re.fullmatch(r"x = \d{1,3}( \+ \d{1,3}){2}", complete(grammar=gbnf).text)
    cut = complete(max_tokens=3, json_object=True)
    assert cut.finish_reason == "length" and cut.text.startswith("{")


def test_a_wrong_schema_is_refused_and_harms_nobody(client: openai.OpenAI) -> None:
    bodies: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "x(a{1000}){1000}"}},
        {"structured_outputs": {"json": {"type": "integer", "multipleOf": 1000003}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "wrong"}},
            }
        },
    ]
    stream = client.completions.create(
        model="smollm2", prompt="Once", max_tokens=50, stream=True, extra_body={"ignore_eos": True}
    )
    seen = iter(stream)
    next(seen)
    for body in bodies:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="smollm2", prompt="a", extra_body=body)
        assert caught.value.param == next(iter(body))
    rest = list(seen)
    assert rest[-1].choices[0].finish_reason == "length"
    answer = client.completions.create(
        model="smollm2", prompt="a", extra_body={"structured_outputs": {"regex": "fine"}}
    )
    assert answer.choices[0].text == "fine"


def test_the_processes_leave_together(serving: Serving) -> None:
    """Runs last: it ends the server."""
    children = psutil.Process(serving.process.pid).children(recursive=True)
    names = [" ".join(child.cmdline()) for child in children]
    assert sum("grammar_process" in name for name in names) == 1
    assert serving.end() == 0, serving.said
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert "Traceback" not in serving.said
