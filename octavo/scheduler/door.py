"""Refusal at the door of what could never be computed. Whoever is let in is served to the end."""

from __future__ import annotations

from octavo.core.errors import ContextTooLong, InvalidParameter


def check_fits(
    num_prompt_tokens: int, *, max_model_len: int, capacity: int, generates: bool = True
) -> None:
    """Checks that a prompt fits, with one token of output if it ``generates``.

    Args:
        capacity: tokens that the whole KV cache holds.

    Raises:
        ContextTooLong: they never will; the message holds the numbers.
        InvalidParameter: the prompt is empty.
    """
    if num_prompt_tokens == 0:
        raise InvalidParameter("the prompt is empty: it needs at least one token", param="prompt")
    room = max_model_len - generates
    if num_prompt_tokens > room:
        also = ", and at least one token of output needs room" if generates else ""
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens{also}, but this model's context is "
            f"{max_model_len} tokens: shorten the prompt to {room} tokens or less",
            param="prompt",
        )
    if num_prompt_tokens + generates > capacity:
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens, but the whole KV cache holds {capacity}: "
            "shorten the prompt, or raise memory_utilization or num_blocks",
            param="prompt",
        )
