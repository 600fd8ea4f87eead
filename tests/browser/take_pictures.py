"""A walk through Airflow's own pages, on a small log of the day before; and pictures of it all.

cd tests && ../.venv/bin/python -m browser.take_pictures ../docs/pictures [remote-log-page | dags]

With remote-log-page only the pictures of our own page are taken, with dags only that of the list of DAGs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from browser.backfills import Backfilled, backfill_by_browser, backfill_by_command_line, list_of_dags_alone
from browser.remote_log_page import remote_log_page, remote_log_page_alone
from browser.runs_by_hand import (
    Red,
    Stopped,
    Stuck,
    connection_form,
    damaged_segment,
    dry_run,
    restored_topic,
    stopped_deletions,
    stuck_copy,
)
from browser.stage import COPY, Committed, Stage, stage

_ALONE = {"remote-log-page": remote_log_page_alone, "dags": list_of_dags_alone}


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the pictures show, as far as it can be said in numbers."""

    start: datetime
    by_browser: Backfilled
    by_command_line: Backfilled
    dry_run: Committed
    stuck: Stuck
    damaged: Red
    stopped: Stopped
    restored: dict[Path, bytes]
    """Each segment that was brought back, by its path in its log directory."""
    written: dict[Path, bytes]
    """Each local one before some are trimmed for the pictures of the page."""


def walk(on: Stage) -> Seen:
    """Do everything once, in order, taking the pictures on the way."""
    on.api.unpause(COPY)
    seen = Seen(
        on.start,
        backfill_by_browser(on),
        backfill_by_command_line(on),
        dry_run(on),
        stuck_copy(on),
        damaged_segment(on),
        stopped_deletions(on),
        _segments_in(restored_topic(on)),
        _segments_in(on.log_directory),
    )
    connection_form(on)
    remote_log_page(on)
    return seen


def _segments_in(log_directory: Path) -> dict[Path, bytes]:
    """Return the content of each segment that has any."""
    contents = {path.relative_to(log_directory): path.read_bytes() for path in log_directory.rglob("*.log")}
    return {path: content for path, content in contents.items() if content}


def main() -> None:
    """Take all pictures again."""
    with (
        tempfile.TemporaryDirectory(prefix="remote-log-") as root,
        stage(Path(root), Path(sys.argv[1]), 8090) as open_stage,
    ):
        what: Callable[[Stage], object] = _ALONE[sys.argv[2]] if sys.argv[2:] else walk
        what(open_stage)


if __name__ == "__main__":
    main()
