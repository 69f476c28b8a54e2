from __future__ import annotations

from typing import Any

import pytest
from support.aio import aio
from support.whole_server import whole_server

from octavo.core.access_config import SecurityConfig
from octavo.core.config import ServerConfig
from octavo.server.record import RequestRecord
from octavo.tokenizer.tokenizer import Tokenizer

BODY = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def record(self, record: RequestRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


@aio
async def test_paths_are_those_of_the_routing_table(tokenizer: Tokenizer) -> None:
    async with whole_server(tokenizer) as whole:
        for path in ("/nothing", "/nothing/else", "/v1/models/echo", "/v1/models/alias/of%20echo"):
            await whole.http.get(path)
        await whole.http.get("/v1/completions")
        await whole.http.request("BREW", "/health")
        found = await whole.metrics()
        counted = {
            key[1:]: value for key, value in found.items() if key[0] == "http_requests_total"
        }
        assert counted == {
            ("GET", "other", "404"): 2,
            ("GET", "/v1/models/{name:path}", "200"): 2,
            ("GET", "/v1/completions", "405"): 1,
            ("other", "/health", "405"): 1,
        }
        assert found["http_request_duration_seconds_count", "other"] == 2


@aio
async def test_refusals_at_the_door_have_the_path_that_was_asked_for(tokenizer: Tokenizer) -> None:
    config = ServerConfig(security=SecurityConfig(api_key=("k",)), root_path="/llm")
    async with whole_server(tokenizer, config=config) as whole:
        for path in ("/v1/completions", "/llm/v1/completions", "/nothing"):
            assert (await whole.http.post(path, json=BODY)).status_code == 401
        good = {"Authorization": "Bearer k"}
        answer = await whole.http.post("/llm/v1/completions", json=BODY, headers=good)
        assert answer.status_code == 200
        found = await whole.metrics()
        assert found["http_requests_total", "POST", "/v1/completions", "401"] == 2
        assert found["http_requests_total", "POST", "/v1/completions", "200"] == 1
        assert found["http_requests_total", "POST", "other", "401"] == 1


@aio
async def test_what_nobody_foresaw_is_a_500(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with whole_server(tokenizer) as whole:

        def broken(*_args: Any) -> bytes:
            raise ZeroDivisionError

        monkeypatch.setattr(whole.parts.state.engine.metrics, "exposition", broken)
        assert (await whole.http.get("/metrics")).status_code == 500
        monkeypatch.undo()
        assert whole.value("http_requests_total", "GET", "/metrics", "500") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_record_of_each_request(tokenizer: Tokenizer, stream: bool) -> None:
    @aio
    async def scenario() -> None:
        kept = Kept()
        async with whole_server(tokenizer, sinks=(kept,)) as whole:
            body = {**BODY, "prompt": [[5, 6], [7, 8, 9]], "n": 2, "stream": stream}
            body["model"] = "alias/of echo"
            answer = await whole.http.post("/v1/completions", json=body)
            assert answer.status_code == 200
            await whole.http.get("/health")
        (record,) = kept.records
        assert (record.method, record.path, record.status) == ("POST", "/v1/completions", 200)
        assert record.model == "alias/of echo"
        assert record.id is not None and record.id in answer.text
        assert record.total_s > 0 and record.client is None
        sizes = [
            (p.summary.num_prompt_tokens, p.summary.num_generated_tokens) for p in record.parts
        ]
        assert sorted(sizes) == [(2, 6), (3, 6)]
        for part in record.parts:
            assert record.arrival <= part.arrival + 0.01
            assert part.params.n == 2

    scenario()


@aio
async def test_a_record_of_a_refusal_names_the_tenant(tokenizer: Tokenizer) -> None:
    kept = Kept()
    config = ServerConfig(security=SecurityConfig(api_key=("k",)))
    async with whole_server(tokenizer, sinks=(kept,), config=config) as whole:
        await whole.http.post("/v1/completions", json=BODY)
        good = {"Authorization": "Bearer k"}
        await whole.http.post("/v1/completions", json={"prompt": "a", "n": 0}, headers=good)
        await whole.http.post("/v1/completions", json=BODY, headers=good)
    refused, wrong, served = kept.records
    assert (refused.status, refused.client, refused.parts) == (401, None, [])
    assert wrong.status == 400 and wrong.client is not None and wrong.id is None
    assert served.status == 200 and served.client == wrong.client
    assert [part.summary.finish_reasons for part in served.parts] == [("length",)]


@aio
async def test_a_keeper_that_fails_harms_nobody(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Kept):
        def record(self, record: RequestRecord) -> None:
            raise ZeroDivisionError("on purpose")

    kept = Kept()
    async with whole_server(tokenizer, sinks=(Broken(), kept)) as whole:
        assert (await whole.http.post("/v1/completions", json=BODY)).status_code == 200
    assert len(kept.records) == 1
    assert "could not be recorded" in caplog.text
