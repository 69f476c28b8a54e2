"""Who may join the line: a bounded queue, so that overload is told at once and not by waiting."""

from __future__ import annotations

from octavo.core.errors import InvalidParameter, Overloaded
from octavo.server.state import ServerState


def check_room(state: ServerState, num_completions: int = 1, num_tokens: int = 1) -> None:
    """Refuses a request for which the line is too long.

    Nobody waits for whatever is first in line, so that is let in however large it is. Cheap, and
    safe from any thread: it may be asked before a large prompt is tokenized, with what is known.

    Raises:
        Overloaded: says when to try again.
    """
    engine, config = state.engine, state.config
    tokens, completions = engine.waiting.num_tokens, engine.num_waiting
    for what, now, more, limit in (
        ("requests", completions, num_completions, config.max_waiting_requests),
        ("prompt tokens", tokens, num_tokens, config.max_waiting_tokens),
    ):
        if limit and now and now + more > limit:
            error = Overloaded(
                f"the server is overloaded: {now} {what} wait, {more} more would exceed the limit "
                f"of {limit}; try again later"
            )
            error.retry_after_s = engine.waiting.estimate_s()
            raise error


def timeout_s(state: ServerState, wanted_s: float | None) -> float | None:
    """How long a request may take; None for as long as it takes.

    Raises:
        InvalidParameter: it asks for more than the server allows.
    """
    limit = state.config.request_timeout_s
    if wanted_s is None:
        return limit
    if limit is not None and wanted_s > limit:
        raise InvalidParameter(
            f"timeout is {wanted_s:g} seconds, but this server allows {limit:g} at most",
            param="timeout",
        )
    return wanted_s
