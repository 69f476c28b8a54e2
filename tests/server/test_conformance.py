"""The server against its own description: whatever is sent, answers are as the document says.

Cases are made by schemathesis from ``/openapi.json``: right ones, wrong ones, and right ones cut
down to what a client might send, so that many are served and not only refused.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.checkpoints import VOCAB_SIZE, write_checkpoint
from support.real_server import MODEL, real_server

from octavo.server.openapi import ANSWERS, Answer

MIN_CASES = 2000
BUDGET_S = 90
"""Of this process's cores, whatever else the machine does."""
STREAM = "/stats/stream"  # without end: it has a test of its own
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TOKENS = frozenset({"tokens", "prompt", "input", "allowed_token_ids", "stop_token_ids"})
NUM_CASES = {True: 56, False: 160}
"""Of each kind for one operation, by whether it has a body: those cost more."""
LONGEST_KEPT = 3
"""Optional fields in a case that is to be served."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    checkpoint = tmp_path_factory.mktemp("conformance") / "tiny"
    write_checkpoint(checkpoint, "llama")
    with real_server(checkpoint) as found:
        yield found


@pytest.fixture(scope="module")
def document(server: tuple[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server[0]}/openapi.json").json()
    return found


def test_every_operation_has_its_answer(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == set(ANSWERS)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["responses"]["200"]["content"], path
            assert "422" not in operation["responses"]
            has_input = "requestBody" in operation or "parameters" in operation
            assert ("400" in operation["responses"]) == has_input


def test_forms_are_named_and_found(document: dict[str, Any]) -> None:
    names = set(document["components"]["schemas"])
    for text in json.dumps(document).split("#/components/schemas/")[1:]:
        assert text.partition('"')[0] in names


def test_answers_are_as_described(server: tuple[str, Any], document: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_url(f"{server[0]}/openapi.json")
    answers = Answers(document)
    began = time.process_time()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path != STREAM:
            answers.try_all(operation)
    assert time.process_time() - began < BUDGET_S
    assert answers.statuses.total() >= MIN_CASES, answers.statuses
    assert answers.statuses[200] >= MIN_CASES // 10, answers.statuses
    assert answers.num_events > 100
    assert httpx.get(f"{server[0]}/health").json()["status"] == "ok"
    assert httpx.get(f"{server[0]}/stats").json()["requests"]["open"] == 0


def test_the_stream_without_end(server: tuple[str, Any]) -> None:
    with httpx.stream("GET", f"{server[0]}{STREAM}", timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    assert isinstance(json.loads(line.removeprefix("data: ")), dict)


class Answers:
    """Sends cases, and holds the answers against the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.statuses: Counter[int] = Counter()
        self.num_events = 0
        self._document = document
        self._validators: dict[str, Any] = {}

    def try_all(self, operation: Any) -> None:
        """Cases of every kind for one operation."""
        right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        has_body = bool(operation.body)
        number = NUM_CASES[has_body]
        self._try(right, number)
        if has_body:
            self._try(st.composite(_likely)(right, self._form(operation)), number)
        if has_body or operation.query:
            self._try(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), number)

    def _form(self, operation: Any) -> dict[str, Any]:
        """The schema of the operation's body."""
        described = self._document["paths"][operation.path][operation.method]
        name = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        found: dict[str, Any] = self._document["components"]["schemas"][name.rpartition("/")[2]]
        return found

    def _try(self, cases: st.SearchStrategy[Any], number: int) -> None:
        @settings(SETTINGS, max_examples=number)
        @given(case=cases)
        def run(case: Any) -> None:
            answer = case.call(timeout=30)
            self._check(case, answer)

        run()

    def _check(self, case: Any, answer: Any) -> None:
        self.statuses[answer.status_code] += 1
        if answer.status_code == 504:  # right for whoever allows a request next to no time
            assert isinstance(case.body, dict) and case.body.get("timeout") is not None
        else:
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"] and "Input should" not in error["message"]
        described = ANSWERS[case.operation.path]
        if "text/event-stream" in answer.headers["content-type"][0]:
            self._check_events(answer.text, described)

    def _check_events(self, text: str, described: Answer) -> None:
        *events, last, rest = text.split("\n\n")
        assert rest == ""
        done = [*events, last]
        if described.is_marked and last == "data: [DONE]":
            done.pop()
        names = {kind.__name__ for kind in (*described.events, described.error)}
        for event in done:
            found = json.loads(event.split("\n")[-1].removeprefix("data: "))
            valid = [name for name in names if self._validator(name).is_valid(found)]
            assert len(valid) == 1, (found, valid)
            self.num_events += 1

    def _validator(self, name: str) -> Any:
        if name not in self._validators:
            root = {
                "$ref": f"#/components/schemas/{name}",
                "components": self._document["components"],
            }
            self._validators[name] = jsonschema_rs.validator_for(root)
        return self._validators[name]


def _likely(draw: Any, right: st.SearchStrategy[Any], schema: dict[str, Any]) -> Any:
    """A right case with few fields, none of which asks for what this model does not have."""
    case = draw(right)
    if not isinstance(case.body, dict):
        return case
    optional = sorted(set(case.body) - set(schema.get("required", [])))
    kept = draw(st.permutations(optional))[:LONGEST_KEPT]
    body = {name: value for name, value in case.body.items() if name not in optional}
    body |= {name: case.body[name] for name in kept}
    for name in TOKENS & body.keys():
        body[name] = _fitting(body[name])
    if "model" in body:
        body["model"] = MODEL
    if body.get("timeout") is not None:
        body["timeout"] = 30.0
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": draw(st.text(max_size=20))}]
    if "stream" in schema["properties"]:
        body["stream"] = draw(st.booleans())
    case.body = body
    return case


def _fitting(value: Any) -> Any:
    """Token ids that the model has, in place of any."""
    if isinstance(value, list):
        return [_fitting(item) for item in value] or [5]
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < VOCAB_SIZE:
        return value % VOCAB_SIZE
    return value
