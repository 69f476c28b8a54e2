"""Which tokens each row's grammar allows, computed while the model runs.

A mask has one bit a token, the least significant first. The grammar library computes many at once,
on threads of its own and without the interpreter's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from octavo.grammar.matcher import Matcher
from octavo.sampling.state import RequestSampling

logger = logging.getLogger(__name__)

Masks = npt.NDArray[np.uint8]


class MaskFiller:
    """Fills the masks of a step's rows. Costs nothing until the first row has a grammar."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._executor: LLExecutor | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="octavo-masks")

    def start(self, states: Sequence[RequestSampling]) -> Future[None] | None:
        """Begins to compute the masks of the rows that have a grammar; None if none has.

        They may be read once the future is done, and no token may be appended before. It holds no
        exception: the row whose mask cannot be computed has an error, and no other is touched.
        """
        constrained = [(state, state.matcher) for state in states if state.matcher is not None]
        return self._pool.submit(self._fill, constrained) if constrained else None

    def fill(self, states: Sequence[RequestSampling]) -> None:
        """The same at once."""
        future = self.start(states)
        if future is not None:
            future.result()

    def _fill(self, rows: Sequence[tuple[RequestSampling, Matcher]]) -> None:
        matchers = [matcher for _, matcher in rows]
        masks = np.zeros((len(rows), matchers[0].mask_bytes), np.uint8)
        try:
            self._compute(matchers, masks)
        except BaseException:  # a panic of the library is no Exception
            logger.exception("masks cannot be computed together: once more, one at a time")
            for row, matcher in enumerate(matchers):
                self._compute_alone(matcher, masks[row : row + 1])
        for (state, _), mask in zip(rows, masks, strict=True):
            state.mask = mask

    def _compute(self, matchers: Sequence[Matcher], masks: Masks) -> None:
        if self._executor is None:
            self._executor = LLExecutor(self._num_threads)
        self._executor.unsafe_compute_mask_ptr(
            [(matcher.inner, row) for row, matcher in enumerate(matchers)],
            masks.ctypes.data,
            masks.shape[1],
            len(masks),
        )

    def _compute_alone(self, matcher: Matcher, mask: Masks) -> None:
        try:
            self._compute([matcher], mask)
        except BaseException as error:
            mask.fill(0)
            matcher.fail(f"the next tokens cannot be found: {type(error).__name__}: {error}")
