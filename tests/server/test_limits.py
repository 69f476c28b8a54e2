"""Every documented parameter at its limits and one beyond.

The cases come from the OpenAPI document, so that there is none without: a parameter whose form or
limits say too little to make a case of fails the test until it has one in `OWN`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import httpx
import pytest
from support.checkpoints import write_checkpoint
from support.limits import alternatives, resolved, values_of
from support.real_server import real_server

from octavo.core.config import ServerConfig

MAX_MODEL_LEN = 512  # tools take hundreds of the tiny model's tokens
TIMEOUT_S = 60.0
CONFIG = ServerConfig(max_logprobs=3, request_timeout_s=TIMEOUT_S, trust_request_chat_template=True)
USER = [{"role": "user", "content": "a"}]
TOKENS = [5, 6, 7]

BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TOKENS, "max_tokens": 2},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"model": "tiny", "messages": USER, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": USER},
    "/v1/embeddings": {"input": TOKENS},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": TOKENS},
}
"""What is served by itself, for each operation with a body."""

CHAT_ONLY = {"prompt": None, "messages": USER}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = {"type": "text", "text": "a"}
PLAIN_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
FUNCTION = {"type": "function", "name": "f"}
MESSAGES_TOOL = {
    "name": "f",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "ephemeral"},
}
Place: TypeAlias = tuple[str | int, ...]

WITH: dict[str, dict[str, Any]] = {
    "add_generation_prompt /tokenize": CHAT_ONLY,
    "chat_template_kwargs /tokenize": CHAT_ONLY,
    "messages /tokenize": {"prompt": None},
    "prompt /tokenize": {"messages": None},
    "stream_options": {"stream": True},
    "tool_choice /v1/chat/completions": {"tools": [TOOL]},
    "tool_choice /v1/responses": {"tools": [PLAIN_TOOL]},
    "tool_choice /v1/messages": {"tools": [MESSAGES_TOOL]},
    "tool_choice /v1/messages/count_tokens": {"tools": [MESSAGES_TOOL]},
    "tools /tokenize": CHAT_ONLY,
    "chat_template /tokenize": CHAT_ONLY,
    "continue_final_message /tokenize": {**CHAT_ONLY, "add_generation_prompt": False},
    "continue_final_message": {"add_generation_prompt": False},
    "reasoning_effort /tokenize": CHAT_ONLY,
    "top_logprobs /v1/responses": {"include": ["message.output_text.logprobs"]},
    "top_logprobs /v1/chat/completions": {"logprobs": True},
}
"""Fields that a field needs beside it, by its name and perhaps the path."""

CACHED = {"cache_control": {"type": "ephemeral"}}
BLOCKS = [
    {**TEXT, **CACHED},
    {"type": "thinking", "thinking": "a", **CACHED},
    {"type": "tool_use", "id": "a", "name": "f", "input": {}, **CACHED},
]
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{**TEXT, **CACHED}], **CACHED}
ITEMS = [
    {
        "role": "assistant",
        "content": [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "a"}],
    },
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "a"}],
        "content": [{"type": "reasoning_text", "text": "a"}],
    },
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "a",
        "output": [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "a"}],
    },
]
SAMPLES: dict[str, list[Any]] = {
    "cache_control": [{"type": "ephemeral"}],
    "input": [ITEMS],
    "messages": [
        [{"role": "assistant", "content": [TEXT], "tool_calls": [CALL]}],
        [{"role": "assistant", "content": BLOCKS}],
        [{"role": "user", "content": [RESULT]}],
    ],
    "metadata": [{"user_id": "a"}],
    "output_config": [{"format": {"type": "json_schema", "schema": {}}}],
    "reasoning": [{"effort": None}],
    "response_format": [{"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}],
    "stream_options": [{"include_usage": True}, {}],
    "structured_outputs": [{"choice": ["a", "b"]}],
    "system": [[{**TEXT, **CACHED}]],
    "text": [{"format": {"type": "json_schema", "name": "a", "schema": {}}}],
    "thinking": [{"type": "disabled"}],
    "tool_choice": [
        *(NAMED, ALLOWED, FUNCTION, {"type": "tool", "name": "f"}),
        {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]},
    ],
    "tools": [[TOOL], [PLAIN_TOOL], [MESSAGES_TOOL]],
}
"""What may stand in a body's field that has fields of its own, which are tried one after the other:
for each form of it a sample in which it occurs."""

ALONE = frozenset({"structured_outputs"})
"""Objects that may have one field at a time."""

PROMPTS = ["", "a", ["a", "b"], [5], [[5], [6]], [TOKENS * 20], ["a"] * 1024]
NO_PROMPTS = [[], [[]], [-1], [300], [5] * (MAX_MODEL_LEN + 1), [5, "a"], 5, {}, ["a"] * 1025]
OWN: dict[str, tuple[list[Any], list[Any]]] = {
    "chat_template_kwargs": ([{}, {"a": 5}], [{"messages": []}, [], 5]),
    "arguments": (["{}", "no JSON"], [5, {}]),
    "chat_template": (["{{ messages[0].content }}"], ["{% if", 5]),
    "choice": ([["a"], ["a", "b"]], [[], [5], "a"]),
    "content /InputReasoningItem": ([None, []], ["a", [{"type": "text", "text": "a"}], 5]),
    "logprobs /OutputTextPart": ([None, [], [{}]], ["a", 5]),
    "content": (["a", [{"type": "text", "text": "a"}]], [5, [5], [{"type": "image_url"}]]),
    "grammar": (['start: "a"', 'root ::= "a"'], ["start: (", 5]),
    "index": ([0, -1], [0.5, "1"]),
    "input /v1/embeddings": (PROMPTS[1:6], NO_PROMPTS[:-1]),
    "json": ([{}, "{}", True], ['{"type":', [], 5]),
    "json_object": ([True], [5]),
    "logit_bias": ([{}, {"0": -100, "299": 100}], [{"300": 1}, {"x": 1}, {"5": 100.1}, []]),
    "budget_tokens": ([1, 1000], [0, 0.5]),
    "input /v1/responses": (["", "a", ITEMS], [[], 5, [5], [{"type": "image"}]]),
    "input /InputToolUseBlock": ([{}, {"a": 5}], [[], "a"]),
    "include": ([[], ["reasoning.encrypted_content"]], [["web"], 5]),
    "max_output_tokens": ([1, None], [0, -1, MAX_MODEL_LEN, 2**31, 0.5]),
    "max_tokens /v1/messages": ([1, 2], [0, -1, 2**31, 0.5, "1", None]),
    "max_completion_tokens": ([1, None], [0, -1, MAX_MODEL_LEN, 2**31, 0.5]),
    "max_tokens": ([1, 2, None], [-1, MAX_MODEL_LEN, 2**31, 0.5, "1"]),
    "messages": ([USER, USER * 2], [[], [5], "a", [{}]]),
    "min_tokens": ([0, 2], [-1, 3, 0.5]),
    "name /FunctionDefinition": (["f"], ["", "a" * 129, "a b", 5]),
    "name /FunctionName": (["f"], ["", "g", 5]),
    "name /json_schema": (["a", "a" * 64, "a-B_9"], ["", "a" * 65, "a b", 5]),
    "prompt /v1/completions": (PROMPTS[1:6], NO_PROMPTS[:-1]),
    "prompt /tokenize": (["", "a"], [5, ["a"]]),
    "regex": (["a+", "[ab]{2}"], ["(", 5]),
    "reasoning_effort": ([None], ["nothing", "low", 5]),
    "effort": ([None], ["nothing", "low", 5]),
    "role": (["assistant"], ["nobody", 5]),
    "schema": ([{}, {"type": "integer"}], [{"type": "nothing"}, [], 5]),
    "stop": (["a", ["a"] * 16, []], [["a"] * 17, [""], "", [5], 5]),
    "text_1": (["a", ["a"]], [[], 5, [5], ["a", "b"]]),
    "text_2": (["a", ["a"], ["a", "b"]], [[], 5, [5]]),
    "type /TextPart": (["text"], ["image_url", 5]),
    "schema /v1/messages/count_tokens": ([{}, {"type": "integer"}], [[], 5]),
    "type /TextFormat": (["json_schema"], ["text", "json_object", "xml", 5]),
    "name /TextFormat": (["a", "a" * 64], ["", "a" * 65, "a b", None, 5]),
    "name /FunctionTool": (["f"], ["", "a" * 129, "a b", 5]),
    "name /MessagesTool": (["f"], ["", "a" * 129, "a b", 5]),
    "name /FunctionChoice": (["f"], ["", "g", 5]),
    "name /MessagesToolChoice": (["f"], ["", "g", 5]),
    "type /MessagesToolChoice": (["tool"], ["none of these", 5]),
    "type /response_format": (["json_schema"], ["text", "json_object", "xml", 5]),
    "model": (["tiny", None], ["", "other", 5]),
}
"""(accepted, refused) where the document cannot say it all, by the field's name and perhaps the
path, or the name of the object that it is in."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    checkpoint = tmp_path_factory.mktemp("limits") / "tiny"
    write_checkpoint(checkpoint, "llama")
    with real_server(checkpoint, CONFIG, max_model_len=MAX_MODEL_LEN) as (found, _):
        yield found


@pytest.fixture(scope="module")
def document(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/openapi.json").json()
    return found


def test_every_operation_with_a_body_has_a_base(document: dict[str, Any]) -> None:
    with_body = {
        path
        for path, operations in document["paths"].items()
        if any("requestBody" in operation for operation in operations.values())
    }
    assert with_body == set(BASES)
    text = json.dumps(document)
    for key, (accepted, refused) in OWN.items():
        assert accepted and refused and f'"{key.split()[0]}"' in text, key


@pytest.mark.parametrize("path", BASES)
def test_parameters_of_bodies(url: str, document: dict[str, Any], path: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as http:
        walk = Walk(http, document, path)
        walk.send(BASES[path], None)
        walk.fields(walk.body_schema())
    assert walk.complaints == []
    assert walk.num_cases > 10 or path == "/detokenize"


@pytest.mark.parametrize("path", ["/stats", "/stats/blocks"])
def test_parameters_of_the_query(url: str, document: dict[str, Any], path: str) -> None:
    for parameter in document["paths"][path]["get"]["parameters"]:
        name, values = parameter["name"], values_of(parameter["schema"], {})
        if "pattern" in parameter["schema"]:
            accepted, refused = ["base64", "array"], ["hex", ""]
        else:
            assert values is not None and not values.is_open
            accepted, refused = values.accepted, values.refused[:2]
        for value in accepted:
            assert httpx.get(url + path, params={name: value}).status_code == 200, (name, value)
        for value in refused:
            answer = httpx.get(url + path, params={name: value})
            assert answer.status_code == 400, (name, value)
            assert answer.json()["error"]["param"] == name


def test_the_limit_of_the_output_is_what_the_prompt_leaves(url: str) -> None:
    for path, names in (
        ("/v1/completions", ["max_tokens"]),
        ("/v1/chat/completions", ["max_tokens", "max_completion_tokens"]),
    ):
        base = {name: value for name, value in BASES[path].items() if name != "max_tokens"}
        for name in names:
            sent = {**base, name: 1, "ignore_eos": True}
            used = httpx.post(url + path, json=sent).json()["usage"]["prompt_tokens"]
            room = MAX_MODEL_LEN - used
            answer = httpx.post(url + path, json={**sent, name: room})
            assert answer.json()["usage"]["completion_tokens"] == room
            answer = httpx.post(url + path, json={**sent, name: room + 1})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name


def test_completions_may_have_no_output(url: str) -> None:
    sent = {**BASES["/v1/completions"], "max_tokens": 0}
    assert httpx.post(f"{url}/v1/completions", json=sent).status_code == 200
    sent = {**BASES["/v1/chat/completions"], "max_tokens": 0}
    assert httpx.post(f"{url}/v1/chat/completions", json=sent).status_code == 400


class Walk:
    """Through all fields of one operation's body."""

    def __init__(self, http: httpx.Client, document: dict[str, Any], path: str) -> None:
        self.complaints: list[str] = []
        self.num_cases = 0
        self._http = http
        self._path = path
        self._document = document
        self._components: dict[str, Any] = document["components"]["schemas"]

    def body_schema(self) -> dict[str, Any]:
        """The body's form."""
        described = self._document["paths"][self._path]["post"]["requestBody"]
        return resolved(described["content"]["application/json"]["schema"], self._components)

    def fields(self, schema: dict[str, Any], place: Place = (), sample: Any = None) -> None:
        """Tries each of an object's fields.

        Args:
            place: where the object is in the body.
            sample: what stands in the body's field that holds it.
        """
        for name, form in schema["properties"].items():
            accepted, refused = self._values(name, form, schema.get("title", ""), place)
            for value in accepted:
                self.send(self._body(name, value, place, sample), None)
            for value in refused:
                blamed = str(place[0]) if place else name
                self.send(self._body(name, value, place, sample), blamed)
            for inner in self._objects(form):
                found = [sample] if place else []
                found += SAMPLES.get(str(place[0]) if place else name, [])
                spots = ((whole, self._spot(whole, place, name, inner)) for whole in found)
                whole, below = next((spot for spot in spots if spot[1] is not None), (None, None))
                if below is None:
                    self.complaints.append(f"{name}: {inner['title']} has no sample")
                else:
                    self.fields(inner, (*place, name, *below), whole)

    def send(self, body: dict[str, Any], param: str | None) -> None:
        """Notes what is not as it should be: refused with this parameter, or accepted if None."""
        self.num_cases += 1
        answer = self._http.post(self._path, json=body)
        shown = f"{str(body)[:300]} -> {answer.status_code} {answer.text[:200]}"
        if param is None:
            if answer.status_code not in (200, 504):
                self.complaints.append(f"refused: {shown}")
        elif answer.status_code not in (400, 404):
            self.complaints.append(f"accepted: {shown}")
        elif not self._blames(answer.json()["error"], param):
            self.complaints.append(f"{param} is not blamed: {shown}")

    def _blames(self, error: dict[str, Any], param: str) -> bool:
        if "param" in error:
            return str(error["param"]).startswith(param)
        return param in error["message"]  # the Messages API has no place of its own for it

    def _values(
        self, name: str, form: dict[str, Any], parent: str, place: Place
    ) -> tuple[list[Any], list[Any]]:
        holder = str(place[-1] if place and isinstance(place[-1], str) else parent)
        for key in (f"{name} {self._path}", f"{name} /{holder}", f"{name} /{parent}", name):
            if key in OWN:
                return OWN[key]
        if not form.keys() - {"title", "description", "default"}:
            return [None, 5, "a", {}, []], []
        found = values_of(form, self._components)
        if self._objects(form):  # tried below, with all that they need
            return [], [5]
        if found is None or found.is_open or not found.refused:
            self.complaints.append(f"{name}: what the document says makes no case: {form}")
            return [], []
        return found.accepted, found.refused

    def _objects(self, form: dict[str, Any]) -> list[dict[str, Any]]:
        """Forms of objects that a field may hold, by itself or in a list."""
        found = []
        for member in alternatives(form, self._components):
            if member.get("type") == "array" and "items" in member:
                found += alternatives(member["items"], self._components)
            else:
                found.append(member)
        return [member for member in found if member.get("properties") and not _is_other(member)]

    def _spot(
        self, whole: Any, place: Place, name: str, inner: dict[str, Any]
    ) -> tuple[int, ...] | None:
        """Where an object of this form is in the field of a sample: itself, or an item of it."""
        for part in (*place, name)[1:]:
            if isinstance(part, str) and part not in whole:
                return None
            whole = whole[part]
        if isinstance(whole, list):
            return next(((i,) for i, item in enumerate(whole) if _fits(item, inner)), None)
        return () if _fits(whole, inner) else None

    def _body(self, name: str, value: Any, place: Place, sample: Any) -> dict[str, Any]:
        top = str(place[0]) if place else name
        body = {**BASES[self._path], **WITH.get(top, {}), **WITH.get(f"{top} {self._path}", {})}
        if top == "max_completion_tokens":
            body.pop("max_tokens")
        body = {key: item for key, item in body.items() if item is not None}
        is_alone = bool(place) and place[-1] in ALONE
        body[top] = _with(sample, place[1:], name, value, alone=is_alone) if place else value
        return body


def _is_other(form: dict[str, Any]) -> bool:
    """Whether it stands for all objects that are refused."""
    return set(form["properties"]) == {"type"} and not {"enum", "const"} & set(
        form["properties"]["type"]
    )


def _fits(value: Any, form: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or not set(form.get("required", [])) <= set(value):
        return False
    kind = form["properties"].get("type", {})
    kinds = [word for member in [kind, *kind.get("anyOf", [])] for word in _words(member)]
    is_of = not kinds or "type" not in value or value["type"] in kinds
    return is_of and set(value) <= set(form["properties"])


def _words(form: dict[str, Any]) -> list[str]:
    found: list[str] = form.get("enum", [form["const"]] if "const" in form else [])
    return found


def _with(sample: Any, place: Place, name: str, value: Any, *, alone: bool) -> Any:
    """The sample with one field of it replaced."""
    if not place:
        return {name: value} if alone else {**sample, name: value}
    first, rest = place[0], place[1:]
    inner = _with(sample[first], rest, name, value, alone=alone)
    if isinstance(first, int):
        return [*sample[:first], inner, *sample[first + 1 :]]
    return {**sample, first: inner}


def test_the_walk_finds_what_is_wrong(url: str, document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    components = changed["components"]["schemas"]
    fields = components["DetokenizeRequest"]["properties"]
    fields["newcomer"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    fields["tokens"]["items"]["maximum"] += 1
    with httpx.Client(base_url=url, timeout=60) as http:
        walk = Walk(http, changed, "/detokenize")
        walk.fields(walk.body_schema())
    assert any(text.startswith("newcomer: what the document says") for text in walk.complaints)
    assert any(text.startswith("refused") and "300" in text for text in walk.complaints)
