"""Batches: OpenAI's file format through the application, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from support.fake_engine import Script, Served, served

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.errors import ConfigError
from octavo.server.access.control import Access
from octavo.server.batch.asgi import post
from octavo.server.batch.files import OutcomeFile, requests
from octavo.server.batch.lines import (
    ENDPOINTS,
    Outcome,
    Request,
    answered,
    cancelled,
    failed,
    parse,
)
from octavo.server.batch.runner import BatchRunner
from octavo.tokenizer.tokenizer import Tokenizer

COMPLETIONS = "/v1/completions"


def line(custom_id: Any, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    body = body or {"prompt": "ab", "max_tokens": 2}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def numbered(lines: Iterable[Any]) -> list[tuple[int, bytes]]:
    return [
        (number, item if isinstance(item, bytes) else json.dumps(item).encode())
        for number, item in enumerate(lines, 1)
    ]


def run_batch(
    tokenizer: Tokenizer,
    lines: Iterable[Any],
    *,
    script: Script | None = None,
    num_at_once: int = 4,
    during: Callable[[BatchRunner, Served], Awaitable[None]] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], BatchRunner]:
    """Outcomes as they are written, in the order in which they came."""
    found: list[dict[str, Any]] = []

    def take(outcome: Outcome) -> None:
        found.append(json.loads(msgspec.json.encode(outcome)))

    async def main() -> BatchRunner:
        async with served(script, tokenizer=tokenizer) as parts:
            runner = BatchRunner(parts.app, parts.app.openapi()["paths"], take, **options)
            work = asyncio.create_task(runner.run(numbered(lines), num_at_once))
            if during is not None:
                await during(runner, parts)
            await work
            assert parts.state.engine.num_open == 0
            return runner

    runner = asyncio.run(main())
    return found, runner


def test_requests_to_every_endpoint(tokenizer: Tokenizer) -> None:
    lines = [
        line("c", "/v1/chat/completions", messages=[{"role": "user", "content": "hi 😀"}]),
        line("t", "/v1/completions", prompt=["ab", "cd"], max_tokens=3),
        line("e", "/v1/embeddings", input="ab"),
        line("s", "/v1/score", text_1="ab", text_2=["ab", "c"]),
        line("r", "/v1/responses", input="hi"),
    ]
    found, runner = run_batch(tokenizer, lines)
    by_id = {outcome["custom_id"]: outcome for outcome in found}
    assert len(found) == len(by_id) == len(lines)
    for outcome in found:
        assert set(outcome) == {"id", "custom_id", "response", "error"}
        assert outcome["error"] is None
        assert set(outcome["response"]) == {"status_code", "request_id", "body"}
        assert outcome["response"]["status_code"] == 200
    assert len({outcome["id"] for outcome in found}) == len(lines)
    chat = ChatCompletion.model_validate(by_id["c"]["response"]["body"])
    assert chat.choices[0].message.content == "user\nhi 😀"
    texts = [choice["text"] for choice in by_id["t"]["response"]["body"]["choices"]]
    assert texts == ["aba", "cdc"]
    vectors = CreateEmbeddingResponse.model_validate(by_id["e"]["response"]["body"])
    assert len(vectors.data[0].embedding) > 8
    tally = runner.tally
    assert (tally.num_done, tally.num_failed, tally.num_cancelled) == (5, 0, 0)
    response = by_id["r"]["response"]["body"]
    assert response["output"][0]["content"][0]["text"] == "user\nhi"
    answers = [outcome["response"]["body"]["usage"] for outcome in found]
    assert tally.prompt_tokens == sum(
        u.get("prompt_tokens", 0) + u.get("input_tokens", 0) for u in answers
    )
    assert tally.output_tokens == sum(
        u.get("completion_tokens", 0) + u.get("output_tokens", 0) for u in answers
    )


def test_errors_are_told_line_by_line(tokenizer: Tokenizer) -> None:
    lines = [
        b"{",
        b"[1]",
        b'{"custom_id": "x", "custom',
        line(None),
        line(""),
        line("x" * 513),
        line(5),
        line("get") | {"method": "GET"},
        line("url", "/v1/models"),
        line("no url") | {"url": None},
        line("none") | {"body": None},
        line("more") | {"extra": 1},
        line("twice"),
        line("twice"),
        line("stream", prompt="a", stream=True),
        line("param", prompt="a", suffix="b"),
        line("model", prompt="a", model="other"),
        line("long", prompt="z" * 1000),
        line("big", prompt="a", seed=10**30),
        line("good"),
    ]
    found, runner = run_batch(tokenizer, lines)
    assert len(found) == len(lines)
    faults = [o["error"] for o in found if o["error"] is not None]
    assert all(outcome["response"] is None for outcome in found if outcome["error"])
    codes = [fault["code"] for fault in faults]
    assert sorted(codes) == sorted(
        ["invalid_json_line"] * 3
        + ["invalid_custom_id"] * 4
        + ["invalid_method", "invalid_url", "invalid_url", "invalid_body", "unknown_field"]
        + ["duplicate_custom_id"]
    )
    assert any(fault["message"].startswith("line 14: an earlier line") for fault in faults)
    answers = {o["custom_id"]: o["response"] for o in found if o["response"] is not None}
    statuses = {name: answer["status_code"] for name, answer in answers.items()}
    assert statuses == {
        "twice": 200,
        "good": 200,
        "stream": 400,
        "param": 400,
        "model": 404,
        "long": 400,
        "big": 400,
    }
    for name, param in (("stream", "stream"), ("param", "suffix"), ("big", "seed")):
        assert answers[name]["body"]["error"]["param"] == param
    assert runner.tally.num_failed == len(lines) - 2


def test_endpoints_that_the_application_lacks(tokenizer: Tokenizer) -> None:
    found = parse(1, json.dumps(line("a", "/v1/embeddings")).encode(), [COMPLETIONS])
    assert isinstance(found, Outcome) and found.error is not None
    assert found.error.message.endswith(f"use {COMPLETIONS}")
    assert isinstance(parse(1, json.dumps(line("a")).encode(), ENDPOINTS), Request)


def test_no_more_than_so_many_at_once(tokenizer: Tokenizer) -> None:
    most = 0

    async def watch(_runner: BatchRunner, parts: Served) -> None:
        nonlocal most
        while len(parts.script.submits) < 30:
            most = max(most, parts.state.engine.num_open)
            await asyncio.sleep(0.001)

    lines = [line(str(number)) for number in range(30)]
    script = Script(step_s=0.005)
    found, _ = run_batch(tokenizer, lines, script=script, num_at_once=3, during=watch)
    assert most == 3
    assert {outcome["custom_id"] for outcome in found} == {str(number) for number in range(30)}


def test_a_batch_that_is_ended_says_of_each_request_what_became_of_it(
    tokenizer: Tokenizer,
) -> None:
    async def end(runner: BatchRunner, parts: Served) -> None:
        while runner.tally.num_done < 5:
            await asyncio.sleep(0.001)
        runner.end()

    lines = [line(str(number), prompt="ab", max_tokens=8) for number in range(40)]
    found, runner = run_batch(tokenizer, lines, script=Script(step_s=0.003), during=end)
    assert {outcome["custom_id"] for outcome in found} == {str(number) for number in range(40)}
    assert len(found) == 40
    ended = [outcome for outcome in found if outcome["error"] is not None]
    assert {outcome["error"]["code"] for outcome in ended} == {"batch_cancelled"}
    tally = runner.tally
    assert tally.num_done >= 5 and tally.num_failed == 0
    assert tally.num_cancelled == len(ended) == 40 - tally.num_done > 20
    served_before = {o["custom_id"] for o in found if o["error"] is None}
    rest, runner = run_batch(tokenizer, lines, done=served_before)
    assert {outcome["custom_id"] for outcome in rest} | served_before == set(map(str, range(40)))
    assert len(rest) == len(ended)


@pytest.mark.parametrize(
    ("num_refusals", "says_when", "num_tries", "status"),
    [(2, True, 3, 200), (100, True, 5, 503), (1, False, 1, 503)],
)
def test_refusals_for_the_moment_are_tried_again(
    num_refusals: int, says_when: bool, num_tries: int, status: int
) -> None:
    waits: list[float] = []
    found: list[Outcome] = []
    seen = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal seen
        seen += 1
        code = 503 if seen <= num_refusals else 200
        headers = [(b"Retry-After", b"3")] if code == 503 and says_when else []
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    runner = BatchRunner(app, ENDPOINTS, found.append, sleep=sleep)
    asyncio.run(runner.run(numbered([line("a")]), 1))
    assert [o.response.status_code for o in found if o.response is not None] == [status]
    assert (seen, waits) == (num_tries, [3] * (num_tries - 1))


def test_what_goes_wrong_with_the_files_ends_the_batch(tokenizer: Tokenizer) -> None:
    def lines() -> Iterable[tuple[int, bytes]]:
        yield from numbered([line("a")])
        raise ConfigError("the disk is gone")

    async def main() -> None:
        async with served(tokenizer=tokenizer) as parts:
            runner = BatchRunner(parts.app, ENDPOINTS, lambda outcome: None)
            with pytest.raises(ConfigError, match="disk is gone"):
                await runner.run(lines(), 3)
            assert parts.state.engine.num_open == 0

    asyncio.run(main())


def test_an_answer_in_pieces_and_a_client_that_leaves(tokenizer: Tokenizer) -> None:
    script = Script(step_s=0.01)

    async def main() -> None:
        async with served(script, tokenizer=tokenizer) as parts:
            answer = await post(parts.app, COMPLETIONS, b'{"prompt": "ab", "stream": true}')
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.body.endswith(b"data: [DONE]\n\n")
            task = asyncio.create_task(post(parts.app, COMPLETIONS, b'{"prompt": "ab"}'))
            while not parts.link.running:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.03)
            assert parts.link.running == [] and script.aborted

    asyncio.run(main())


def test_keys_are_for_those_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "sk-a")
    monkeypatch.setenv("OCTAVO_API_KEYS", "bob:sk-b")
    access = Access(SecurityConfig(), LimitsConfig(), reads_environment=False)
    assert not access.needs_key
    assert Access(SecurityConfig(), LimitsConfig()).num_keys == 2


# ------------------------------------------------------------------ files


def written(path: Path, *outcomes: Outcome) -> OutcomeFile:
    file = OutcomeFile(path)
    file.open()
    for outcome in outcomes:
        file.append(outcome)
    file.close()
    return file


def test_a_file_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    outcomes = [
        answered("good", 200, b'{"a": 1}'),
        answered("refused", 400, b"{}"),
        answered("overloaded", 429, b"{}"),
        answered("too slow", 408, b"{}"),
        answered("dead", 503, b"{}"),
        cancelled("ended"),
        failed(None, "invalid_json_line", "line 9: no"),
        failed("wrong", "invalid_url", "line 8: no"),
    ]
    file = written(path, *outcomes)
    lines = path.read_bytes()
    path.write_bytes(lines + b'{"id": "batch_req_1", "custom_id": "cut sh')
    ids = {outcome.custom_id for outcome in outcomes if outcome.custom_id}
    before = path.read_bytes()
    assert file.survey(ids) == {"good", "refused"}
    assert path.read_bytes() == before, "nothing has changed yet"
    file.open({"good", "refused"})
    assert path.read_bytes() == b"".join(lines.splitlines(keepends=True)[:2])
    file.append(answered("dead", 200, b"{}"))
    file.close()
    assert file.survey(ids) == {"good", "refused", "dead"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"], "no draft is left"


@pytest.mark.parametrize("text", ['{"a": 1}\n', "dear diary\n", '{"id": 5}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 1, is no outcome"):
        OutcomeFile(path).survey({"a"})
    assert path.read_text() == text


def test_a_file_of_another_batch_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = written(path, answered("a", 200, b"{}"), answered("b", 500, b"{}"))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 2, is about 'b'"):
        file.survey({"a"})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    assert OutcomeFile(tmp_path / "new").is_empty()
    assert not OutcomeFile(tmp_path).is_empty()
    with pytest.raises(ConfigError, match="cannot be written"):
        OutcomeFile(tmp_path / "no" / "such").open()
    with pytest.raises(ConfigError, match="cannot be written"):
        OutcomeFile(tmp_path / "no" / "such").check_writable()
    with pytest.raises(ConfigError, match="cannot be read"):
        OutcomeFile(tmp_path).survey(set())
    with pytest.raises(ConfigError, match="cannot be read"):
        list(requests(tmp_path / "nothing"))
    full = OutcomeFile(Path("/dev/full"))
    full.open()
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        full.append(cancelled("a"))
    full.close()


def test_blank_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n{}\r\n  \n{}")
    assert [number for number, _ in requests(path)] == [2, 4]
