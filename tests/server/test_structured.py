"""What asks for a form of the output over HTTP, and what the engine hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import Script
from support.http_client import Client

from octavo.core.errors import InvalidParameter
from octavo.core.params import MAX_STRUCTURED_CHARS, Structured
from octavo.core.plan import RequestDelta

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}}}
Within = Callable[..., Any]


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", **fields}}


FORMS: list[tuple[dict[str, Any], Structured | None]] = [
    ({"response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": None}, None),
    ({"response_format": {"type": "json_object"}}, Structured.json()),
    ({"response_format": named(schema=SCHEMA)}, Structured.json(SCHEMA)),
    (
        {"response_format": named(schema=SCHEMA, strict=True, description="x")},
        Structured.json(SCHEMA),
    ),
    ({"response_format": named(strict=False)}, Structured.json()),
    ({"structured_outputs": {"json": SCHEMA}}, Structured.json(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Structured.json(SCHEMA)),
    ({"structured_outputs": {"json": True}}, Structured.json(True)),
    ({"structured_outputs": {"json_object": True}}, Structured.json()),
    ({"structured_outputs": {"regex": "a+", "json_object": False}}, Structured.regex("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Structured.choice(["a", "b"])),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Structured.grammar('root ::= "a"')),
    (
        {
            "structured_outputs": {"regex": "a", "disable_any_whitespace": False},
            "response_format": {"type": "text"},
        },
        Structured.regex("a"),
    ),
]


def test_every_way_to_ask(within: Within) -> None:
    async def scenario(client: Client) -> None:
        script = client.parts.script
        for body, expected in FORMS:
            await client.chat(**body)
            await client.complete(prompt=["a", "b"], **body)
            await client.stream_completion(prompt="a", n=2, **body)
            found = [submit.params.structured for submit in script.submits]
            assert found == [expected] * 4, body
            script.submits.clear()

    within(scenario)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "no json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {}}, "response_format.type", "missing"),
    ({"response_format": "json"}, "response_format", "use an object"),
    (
        {"response_format": {**named(), "type": "text"}},
        "response_format",
        "its type is 'text'",
    ),
    (
        {"response_format": {**named(), "type": "json_object"}},
        "response_format",
        "its type is 'json_object'",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "missing",
    ),
    (
        {"response_format": named(schema=SCHEMA) | {"json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
        "'a b'",
    ),
    ({"response_format": named(schema=[])}, "response_format.json_schema.schema", "an object"),
    ({"response_format": named(schemas={})}, "response_format.json_schema.schemas", "schema"),
    ({"structured_outputs": {}}, "structured_outputs", "says nothing"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "list of strings"),
    ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice[0]", "a string"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "no valid JSON"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "as an object or as text"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "no parameter"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "not supported",
    ),
    (
        {"structured_outputs": {"regex": "a" * (MAX_STRUCTURED_CHARS + 1)}},
        "structured_outputs",
        f"at most {MAX_STRUCTURED_CHARS}",
    ),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
        "send one",
    ),
    ({"guided_json": SCHEMA}, "guided_json", "structured_outputs with 'json'"),
    ({"guided_regex": "a"}, "guided_regex", "structured_outputs with 'regex'"),
    ({"guided_choice": ["a"]}, "guided_choice", "structured_outputs with 'choice'"),
    ({"guided_grammar": "a"}, "guided_grammar", "structured_outputs with 'grammar'"),
]


def test_what_is_not_understood_is_refused_by_name(within: Within) -> None:
    async def scenario(client: Client) -> None:
        for body, param, said in REFUSED:
            for path, prompt in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "a"})):
                error = await client.refused(path, {**prompt, **body})
                assert error["param"] == param, (body, error)
                assert said in error["message"], (body, error)
        assert client.parts.script.submits == []

    within(scenario)


def test_a_bare_format_of_the_longest_name(within: Within) -> None:
    async def scenario(client: Client) -> None:
        await client.chat(
            response_format={"type": "json_schema", "json_schema": {"name": "a" * 64}}
        )
        for name in ("a" * 65, "", "a\n", "é"):
            body = {"messages": USER, "response_format": named() | {"json_schema": {"name": name}}}
            await client.refused(CHAT, body)

    within(scenario)


WAYS = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("body", "param"), WAYS)
def test_what_the_engine_refuses_has_the_name_that_the_client_used(
    within: Within, body: dict[str, Any], param: str, is_streamed: bool
) -> None:
    refusal = RequestDelta(
        request_id="",
        error="no such form",
        error_kind="InvalidParameter",
        error_param="structured",
    )

    async def scenario(client: Client) -> None:
        asked = {"messages": USER, "stream": is_streamed, **body}
        error = await client.refused(CHAT, asked)
        assert (error["param"], error["message"]) == (param, "no such form")

    within(scenario, Script(refuse=refusal))


class Guard:
    """Refuses regular expressions."""

    def __init__(self) -> None:
        self.asked: list[Structured] = []

    async def check(self, structured: Structured) -> None:
        self.asked.append(structured)
        if structured.kind == "regex":
            raise InvalidParameter("not this one", param="structured")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_engine_does_not_hear_of_what_the_guard_refuses(
    within: Within, is_streamed: bool
) -> None:
    guard = Guard()

    async def scenario(client: Client) -> None:
        (fine, _), (wrong, param) = WAYS
        body = {"prompt": ["a", "b"], "stream": is_streamed}
        error = await client.refused(COMPLETIONS, {**body, **wrong})
        assert (error["param"], error["message"]) == (param, "not this one")
        assert client.parts.script.submits == []
        assert (await client.http.post(COMPLETIONS, json={**body, **fine})).status_code == 200
        assert (await client.http.post(COMPLETIONS, json=body)).status_code == 200
        assert set(guard.asked) == {Structured.regex("("), Structured.json()}
        assert client.parts.state.engine.num_open == 0

    within(scenario, guard=guard)
