"""Whole answers of the API, as its document describes them; `responses` has their parts."""

from __future__ import annotations

import msgspec

from octavo.core.types import TokenId
from octavo.server.openai.responses import ChatChoice, ChatChunkChoice, CompletionChoice, Envelope


class Completion(Envelope, omit_defaults=True):
    """Answer of ``/v1/completions``, and each event of its stream."""

    choices: list[CompletionChoice]


class ChatCompletion(Envelope, omit_defaults=True):
    """Answer of ``/v1/chat/completions``."""

    choices: list[ChatChoice]


class ChatCompletionChunk(Envelope, omit_defaults=True):
    """An event of its stream."""

    choices: list[ChatChunkChoice]


class Model(msgspec.Struct):
    """A name that the model is served under."""

    id: str
    created: int
    root: str
    """What was given to ``octavo serve``."""
    max_model_len: int
    object: str = "model"
    owned_by: str = "octavo"


class ModelList(msgspec.Struct):
    """Answer of ``/v1/models``."""

    data: list[Model]
    object: str = "list"


class Tokenized(msgspec.Struct, omit_defaults=True):
    """Answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[TokenId]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    """Answer of ``/detokenize``."""

    prompt: str
