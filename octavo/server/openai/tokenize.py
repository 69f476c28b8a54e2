"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidParameter
from octavo.server.errors import json_response
from octavo.server.openai.chat import plain_messages
from octavo.server.openai.schemas import DetokenizeRequest, TokenizeRequest
from octavo.server.state import rendered_chat, state_of

router = APIRouter()


@router.post("/tokenize", response_model=None)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a text, or of a conversation as the model would see it."""
    state = state_of(request)
    state.check_model(body.model)
    tokenizer = state.engine.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameter("send either prompt or messages", param="prompt")
    if body.messages is not None:
        messages = plain_messages(body.messages)
        options = {"add_generation_prompt": body.add_generation_prompt}
        tokens = rendered_chat(state, messages, None, **options)
    else:
        add = True if body.add_special_tokens is None else body.add_special_tokens
        tokens = tokenizer.encode(body.prompt or "", add)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": state.max_model_len,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = [
            tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens
        ]
    return json_response(answer)


@router.post("/detokenize", response_model=None)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    state = state_of(request)
    state.check_model(body.model)
    vocab = state.engine.info.spec.vocab_size
    wrong = next((token for token in body.tokens if not 0 <= token < vocab), None)
    if wrong is not None:
        raise InvalidParameter(
            f"tokens has id {wrong}: this model's are 0 to {vocab - 1}", param="tokens"
        )
    text = state.engine.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return json_response({"prompt": text})
