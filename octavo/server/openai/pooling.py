"""Texts to embeddings: what the endpoints for embeddings and for scores do alike."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.types import TokenId
from octavo.front.embedding import Embedding, embedding_of, embedding_params
from octavo.server.admission import check_room, timeout_s
from octavo.server.openai.common import all_or_none
from octavo.server.openai.prompts import Field, encode_texts
from octavo.server.openai.responses import EmbeddingUsage
from octavo.server.openai.schemas import PoolingBody
from octavo.server.state import ServerState

MAX_TEXTS = 2048
"""Of one HTTP request, as in the OpenAI API."""


def encode(
    given: str | list[str] | list[int] | list[list[int]],
    name: str,
    body: PoolingBody,
    state: ServerState,
) -> list[list[TokenId]]:
    """The texts in the field ``name`` as token ids.

    Raises:
        RequestError: there is none, or one of them is empty or longer than the context.
    """
    field = Field(name, most=MAX_TEXTS, num_output_tokens=0)
    return encode_texts(given, field, state, special=body.add_special_tokens is not False)


async def embed(
    texts: Sequence[list[TokenId]], body: PoolingBody, state: ServerState, id: str
) -> list[Embedding]:
    """Embeddings in order. The first error ends all of them.

    Raises:
        EngineError: the engine is gone, the line is too long, or it has failed.
    """
    engine = state.engine
    engine.check_open()
    check_room(state, len(texts), sum(map(len, texts)))
    params = embedding_params(body.pooling or state.config.pooling)
    outputs = await all_or_none(
        [
            engine.complete(
                text,
                params,
                request_id=f"{id}-{number}",
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
                timeout_s=timeout_s(state, body.timeout),
            )
            for number, text in enumerate(texts)
        ]
    )
    return [embedding_of(output) for output in outputs]


def usage_of(embeddings: Sequence[Embedding]) -> EmbeddingUsage:
    """What they cost."""
    total = sum(len(embedding.prompt_token_ids) for embedding in embeddings)
    return EmbeddingUsage(total, total)
