"""Refusal at the door of what could never be computed. Whoever is let in is served to the end."""

from __future__ import annotations

from octavo.core.errors import ContextTooLong, InvalidParameter


def check_fits(num_prompt_tokens: int, *, max_model_len: int, capacity: int) -> None:
    """Checks that a prompt and one token of output fit.

    Args:
        capacity: tokens that the whole KV cache holds.

    Raises:
        ContextTooLong: they never will; the message holds the numbers.
        InvalidParameter: the prompt is empty.
    """
    if num_prompt_tokens == 0:
        raise InvalidParameter("the prompt is empty: it needs at least one token", param="prompt")
    if num_prompt_tokens + 1 > max_model_len:
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens, and at least one token of output needs "
            f"room, but this model's context is {max_model_len} tokens: shorten the prompt to "
            f"{max_model_len - 1} tokens or less",
            param="prompt",
        )
    if num_prompt_tokens + 1 > capacity:
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens, but the whole KV cache holds {capacity}: "
            "shorten the prompt, or raise memory_utilization or num_blocks",
            param="prompt",
        )
