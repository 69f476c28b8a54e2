"""The real `openai` client over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import ChatCompletionMessage
from openai.types.chat import completion_create_params as chat_params
from support.fake_engine import MODEL, Script, Served, listening

from octavo.server.openai.schemas import ChatCompletionRequest, CompletionRequest
from octavo.tokenizer.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi 😀"}]


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[tuple[str, Served]]:
    with listening(Script(num_cached_tokens=2), tokenizer) as found:
        yield found


@pytest.fixture
def client(server: tuple[str, Served]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


@asynccontextmanager
async def asynchronous(server: tuple[str, Served]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server[0]}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "alias/of echo"]
    assert client.models.retrieve(MODEL).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, logprobs=True, top_logprobs=1, temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == "user\nhi 😀"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert choice.logprobs.content[1].top_logprobs[0].token == "u"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_an_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    """With every field that the client's own type has, set or not."""
    history = [*HI, ChatCompletionMessage(role="assistant", content="ho").model_dump(), *HI]
    answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=3)
    message = answer.choices[0].message
    for form in (message, message.model_dump()):
        client.chat.completions.create(model=MODEL, messages=[*HI, form, *HI], max_tokens=1)


def test_every_parameter_of_the_client_is_known() -> None:
    for schema, params in (
        (ChatCompletionRequest, chat_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
    ):
        known = {*schema.model_fields, *schema.unsupported}
        assert set(params.__annotations__) <= known


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}, n=2
    )
    chunks = list(stream)
    for index in range(2):
        choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in choices) == "user\nhi 😀"
        assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > 0


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["ab", "cd"], max_tokens=3, logprobs=1, echo=True, n=2
    )
    assert [choice.text for choice in answer.choices] == ["ababa", "ababa", "cdcdc", "cdcdc"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.text_offset == [0, 1, 2, 3, 4]


def test_completions_streamed(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="ab", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "ababa"


def test_extensions_of_the_api(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="ab",
        max_tokens=2,
        extra_body={"top_k": 1, "ignore_eos": True, "return_token_ids": True},
    )
    assert answer.choices[0].model_extra is not None
    assert len(answer.choices[0].model_extra["token_ids"]) == 2


def test_errors_have_their_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as no_model:
        client.completions.create(model="other", prompt="a")
    assert no_model.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="z" * 100)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL,
            messages=HI,
            functions=[{"name": "f"}],
            stream=True,
        )
    assert tools.value.param == "functions"


def test_many_at_once(server: tuple[str, Served]) -> None:
    async def main() -> None:
        async with asynchronous(server) as client:

            async def streamed(text: str) -> str:
                stream = await client.completions.create(
                    model=MODEL, prompt=text, max_tokens=10, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            async def whole(text: str) -> str:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": text}]
                )
                return answer.choices[0].message.content or ""

            texts = [f"z{number:02d}" for number in range(50)]
            found = await asyncio.gather(*map(streamed, texts), *map(whole, texts))
        for text, answer in zip(texts, found, strict=False):
            assert (text * 20).startswith(answer) and len(answer) >= 9
        assert found[50:] == [f"user\n{text}" for text in texts]

    asyncio.run(main())
    assert server[1].state.engine.num_open == 0


def test_a_stream_that_is_left_early(server: tuple[str, Served]) -> None:
    async def main() -> None:
        async with asynchronous(server) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=HI, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(main())
