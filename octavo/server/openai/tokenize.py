"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter
from octavo.core.types import TokenId
from octavo.server.body import JsonRoute
from octavo.server.errors import json_response
from octavo.server.openai.answers import Detokenized, Tokenized
from octavo.server.openai.prompts import encode_chat, off_loop
from octavo.server.openai.schemas import DetokenizeRequest, TemplateBody, TokenizeRequest
from octavo.server.state import ServerState, state_of

router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize", response_model=None)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a text, or of a conversation as the model would see it."""
    state = state_of(request)
    state.check_model(body.model)
    tokens = await off_loop(len(await request.body()), _tokens, body, state)
    answer = Tokenized(len(tokens), state.max_model_len, tokens)
    if body.return_token_strs:
        spell = state.engine.tokenizer.token_bytes
        answer.token_strs = [spell(token).decode("utf-8", "replace") for token in tokens]
    return json_response(answer)


def _tokens(body: TokenizeRequest, state: ServerState) -> list[TokenId]:
    if body.messages is not None and body.prompt is None:
        return encode_chat(body.messages, body, state)
    if body.prompt is None or body.messages is not None:
        raise InvalidParameter("send either prompt or messages", param="prompt")
    for name in TemplateBody.model_fields.keys() - {"add_special_tokens"}:
        if getattr(body, name) is not None:
            raise InvalidParameter(f"{name} needs messages: leave it out", param=name)
    return state.engine.tokenizer.encode(body.prompt, body.add_special_tokens is not False)


@router.post("/detokenize", response_model=None)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    state = state_of(request)
    state.check_model(body.model)
    state.check_token_ids(body.tokens, "tokens")
    text = await off_loop(
        len(await request.body()), state.engine.tokenizer.decode, body.tokens, False
    )
    return json_response(Detokenized(text))
