"""Log lines on standard error, at the level of ``OCTAVO_LOG_LEVEL``."""

from __future__ import annotations

import logging

from octavo.core import env


def set_up_logging() -> None:
    """Call it once in each process."""
    logging.basicConfig(
        level=env.log_level(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
