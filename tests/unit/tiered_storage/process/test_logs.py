from __future__ import annotations

import json
import logging
import sys

from tiered_storage.process.logs import JsonLines


def test_a_record_is_one_line_of_json() -> None:
    try:
        int("two\nlines")
    except ValueError:
        record = logging.LogRecord("gateway", logging.WARNING, "a file", 1, "%s is away\n", ("broker",), sys.exc_info())

    line = JsonLines(3).format(record)

    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["process"], found["logger"]) == ("WARNING", 3, "gateway")
    assert found["message"] == "broker is away\n"
    assert found["time"].endswith("+00:00")
    assert "ValueError: invalid literal" in found["traceback"]
