"""Whether a token ends its request. Stop strings are the front end's: they need text."""

from __future__ import annotations

from typing import NamedTuple

from octavo.core.request import Request
from octavo.core.types import FinishReason, TokenId


class Stop(NamedTuple):
    """Why a request ends."""

    finish_reason: FinishReason
    stop_reason: TokenId | None = None
    """The stop token, unless it is the model's own end of sequence."""
    keeps_token: bool = False
    """Whether the last token belongs to the text, although the output has stopped."""


def check_stop(request: Request, max_model_len: int, *, is_complete: bool = False) -> Stop | None:
    """Looks at the last token generated; ``is_complete`` if nothing can follow it.

    ``min_tokens`` holds back stop tokens, never a limit on length.
    """
    params, num_output = request.params, len(request.output_token_ids)
    token = request.output_token_ids[-1]
    if num_output >= params.min_tokens:
        if not params.ignore_eos and token in request.eos_token_ids:
            return Stop("stop")
        if token in params.stop_token_ids:
            return Stop("stop", token)
    if is_complete:
        return Stop("stop", keeps_token=True)
    if params.max_tokens is not None and num_output >= params.max_tokens:
        return Stop("length")
    if request.num_known_tokens >= max_model_len:
        return Stop("length")
    return None
