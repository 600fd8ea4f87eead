"""Backfills of copy_segments, each asked for twice: in Airflow's form, and of its command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from browser.past_log import WINDOW
from browser.stage import COPY, RUN_WITHIN, Committed, Remote, Stage
from tiered_storage_airflow.embedded.processes import wait_until

WINDOWS_BY_BROWSER = 4
WINDOWS_BY_COMMAND_LINE = 2
LAST_WINDOW = WINDOWS_BY_BROWSER + WINDOWS_BY_COMMAND_LINE - 1
_CREATE_TRIES = 4
"""On SQLite Airflow refuses a backfill while another part of it writes."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A backfill that ran twice: what each window's run committed, and what was remote after either time."""

    committed: dict[datetime, Committed]
    committed_again: dict[datetime, Committed]
    after: Remote
    after_again: Remote


def backfill_by_browser(stage: Stage) -> Backfilled:
    """Ask for a backfill in the form, twice; look at its runs."""
    windows = range(WINDOWS_BY_BROWSER)
    first, last = stage.start, stage.start + windows[-1] * WINDOW
    asked = datetime.now(UTC)
    button = stage.pages.fill_backfill_form(COPY, first, last, "Missing Runs", len(windows))
    stage.pages.picture("backfill-form", height=1190)
    stage.pages.submit(button)
    committed = _wait_for(stage, windows, asked)
    after = stage.remote()
    _show_copied(stage, windows[1])
    asked = datetime.now(UTC)
    stage.pages.submit(stage.pages.fill_backfill_form(COPY, first, last, "All Runs", len(windows)))
    return Backfilled(committed, _wait_for(stage, windows, asked), after, stage.remote())


def backfill_by_command_line(stage: Stage) -> Backfilled:
    """Ask Airflow's command line for a backfill, twice."""
    windows = range(WINDOWS_BY_BROWSER, WINDOWS_BY_BROWSER + WINDOWS_BY_COMMAND_LINE)
    asked = datetime.now(UTC)
    _airflow(stage, windows)
    committed = _wait_for(stage, windows, asked)
    after = stage.remote()
    asked = datetime.now(UTC)
    _airflow(stage, windows, "--reprocess-behavior", "completed")
    return Backfilled(committed, _wait_for(stage, windows, asked), after, stage.remote())


def picture_of_all_dags(stage: Stage) -> None:
    """Take the picture of the list of DAGs."""
    stage.pages.open_dags()
    stage.pages.picture("dags", height=1000)


def list_of_dags_alone(stage: Stage) -> None:
    """The same after a single run that copies everything."""
    stage.api.unpause(COPY)
    stage.run_by_form(COPY, stage.pages.fill_trigger_form(COPY), "by_hand")
    picture_of_all_dags(stage)


def _show_copied(stage: Stage, window: int) -> None:
    """Take the pictures of a backfill that has ended, and of one run of it."""
    run_id = _run_id(stage.window_end(window))
    pages = stage.pages
    picture_of_all_dags(stage)
    pages.open_runs(COPY)
    pages.picture("backfill-runs", height=760)
    pages.open_graph(COPY, run_id)
    pages.picture("copy-run", height=640)
    pages.open_mapped(COPY, run_id, "commit_metadata")
    pages.picture("commit-names", height=640)
    pages.open_log(COPY, run_id, "copy", "in total:")
    pages.show_lines_of("CopySegmentsOperator")
    pages.picture("copy-progress", height=500)
    pages.open_report(COPY, run_id, "announce")
    pages.picture("run-report", height=610)


def _airflow(stage: Stage, windows: Sequence[int], *options: str) -> None:
    """Create a backfill of those windows as `make airflow` does."""
    first, last = (stage.window_end(number) - WINDOW for number in (windows[0], windows[-1]))
    command = [sys.executable, "-m", "tiered_storage_airflow.embedded.airflow_command"]
    command += ["--config", str(stage.config), "backfill", "create", "--dag-id", COPY]
    command += ["--from-date", first.isoformat(), "--to-date", last.isoformat()]
    command += ["--max-active-runs", "1", *options]
    for _ in range(_CREATE_TRIES):
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_WITHIN)
        if not done.returncode:
            return
        if "database is locked" not in done.stderr:
            break
        # It may have begun before it failed, and another beside it is refused.
        wait_until(lambda: not stage.api.running_backfills(COPY), RUN_WITHIN, interval=1)
    raise AssertionError(f"airflow backfill create failed:\n{done.stdout}\n{done.stderr}")


def _wait_for(stage: Stage, windows: Sequence[int], asked: datetime) -> dict[datetime, Committed]:
    """Wait until the backfill asked for at `asked` has ended, each run well; return what each window committed."""
    committed = {}
    for end in map(stage.window_end, windows):

        def has_ended(run_id: str = _run_id(end)) -> bool:
            run = stage.api.run(COPY, run_id)
            return run.is_finished and run.started is not None and run.started >= asked

        if not wait_until(has_ended, RUN_WITHIN, interval=1):
            raise TimeoutError(f"the run of the window that ends at {end} has not ended in {RUN_WITHIN:.0f} s")
        run = stage.api.run(COPY, _run_id(end))
        stage.expect_state(run, "success")
        committed[end] = stage.committed(run)
    if not wait_until(lambda: not stage.api.running_backfills(COPY), RUN_WITHIN, interval=1):
        raise TimeoutError(f"{COPY}: a backfill is still in progress {RUN_WITHIN:.0f} s after its last run")
    return committed


def _run_id(window_end: datetime) -> str:
    return f"backfill__{window_end.isoformat()}"
