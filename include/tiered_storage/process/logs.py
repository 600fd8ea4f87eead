"""The log of a process that stays up, on standard error: sentences, or a JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

_LOG_LINE: Final = "%(asctime)s %(levelname)s process {} %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Formats a record as one line: time (ISO 8601, UTC), level, process, logger, message, and a traceback if any."""

    def __init__(self, number: int) -> None:
        """Name process `number` in each line."""
        super().__init__()
        self._number = number

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self._number,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(style: Literal["text", "json"], number: int) -> None:
    """Write the log of process `number` to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(number) if style == "json" else logging.Formatter(_LOG_LINE.format(number)))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
