"""Checks guesses with the model: they are kept as long as they are what it generates.

The logits of all positions come from one step. A request's tokens are sampled one after the other
exactly as if each had had a step of its own: with the parameters, the history and the random number
of its position. A guess is right if the token before it was right and it is the token that is
sampled; the first one that is wrong is replaced by the sampled token, and those after it dropped.

So nothing about the output depends on what was guessed, which is more than speculative rejection
sampling promises (Leviathan et al. 2023; Chen et al. 2023): there only the distribution stays. A
guess t of a method that is sure of it is kept with probability p(t) in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from octavo.core.types import TokenId
from octavo.sampling.pipeline import Sampled, sample
from octavo.sampling.state import RequestSampling


def sample_in_turn(
    logits: Tensor,
    states: Sequence[RequestSampling],
    guesses: Sequence[Sequence[TokenId]],
    *,
    take: Callable[[int, TokenId], bool],
    fill_masks: Callable[[Sequence[RequestSampling]], None],
) -> list[list[Sampled]]:
    """Tokens of each request: one, and one more for each right guess.

    Args:
        logits: ``[positions, vocab]`` float32: for each request those of its last known token, then
            those of its guesses.
        take: makes a token of a request (by its index) known, in its state too; False if nothing
            more can be sampled for it.
        fill_masks: computes the masks of grammars for states in which a token was just taken.

    Returns:
        For each request what was sampled, in order. Only the first may be an error, or complete
        without a token: later ones are found again in the next step.
    """
    begins = [0]
    for draft in guesses[:-1]:
        begins.append(begins[-1] + 1 + len(draft))
    found: list[list[Sampled]] = [[] for _ in states]
    rows, depth = list(range(len(states))), 0
    while rows:
        if depth:
            fill_masks([states[row] for row in rows])
        is_all = len(rows) == len(logits)
        part = logits if is_all else logits[[begins[row] + depth for row in rows]]
        going_on = []
        for row, sampled in zip(rows, sample(part, [states[row] for row in rows]), strict=True):
            if sampled.error is not None or sampled.is_complete:
                found[row] = found[row] or [sampled]
                continue
            found[row].append(sampled)
            draft = guesses[row]
            is_right = depth < len(draft) and draft[depth] == sampled.token_id
            if take(row, sampled.token_id) and is_right and not states[row].is_complete:
                going_on.append(row)
        rows, depth = going_on, depth + 1
    return found
