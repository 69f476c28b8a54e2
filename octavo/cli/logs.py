"""Log lines on standard error, at the level of ``OCTAVO_LOG_LEVEL``, for people or as JSON."""

from __future__ import annotations

import datetime
import json
import logging
import os

from octavo.core import env

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, ``pid``, and
    ``exception`` with the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(log_format: str | None = None) -> str:
    """Call it once in each process; returns the format: ``text`` or ``json``.

    Args:
        log_format: None for that of ``OCTAVO_LOG_FORMAT``. Processes that this one starts get it.
    """
    if log_format is not None:
        os.environ[env.LOG_FORMAT] = log_format
    found = env.log_format()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if found == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=env.log_level(), handlers=[handler])
    return found
