"""Logs of a server: one line a record, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import traceback

import orjson

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and what the caller added."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        found = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            found["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(found, default=str).decode()


def set_up_logs(form: str) -> None:
    """Write the records of the server to stderr in one of the forms."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == JSON else plain)
    levels = {"monograph": logging.WARNING, "uvicorn.error": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    logging.getLogger("monograph.serve").setLevel(logging.INFO)
