"""Backfills in Airflow's own pages and by its command line, on a small log of the day before; and pictures of it all.

    cd tests && ../.venv/bin/python -m browser.take_pictures ../docs/pictures

It starts an Airflow of its own, whose schedules are switched off: each run here is one that was asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Locator

from browser.airflow_pages import AirflowPages, find_chromium, logged_in
from browser.past_log import (
    PARTITIONS,
    TOPICS,
    WINDOW,
    closed_by,
    start_of_the_day_before,
    write_past_log,
    write_settings,
)
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.log_segment import list_segments
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.remote_log_parts import store_options
from tiered_storage.settings import load_settings
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun
from tiered_storage_airflow.embedded.credentials import ADMIN, read
from tiered_storage_airflow.embedded.environment import EmbeddedAirflow
from tiered_storage_airflow.embedded.waiting import wait_until

DAG = "copy_segments"
WINDOWS_BY_BROWSER = 4
WINDOWS_BY_COMMAND_LINE = 2
DAMAGED = PARTITIONS[1]
_RUN_WITHIN = 240.0
_COMMITTED = re.compile(r"committed: (\S+) offsets (\d+) to (\d+)")

Committed = frozenset[tuple[str, int, int]]
"""Partitions, and the offsets (inclusive) of a segment that became visible."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What is remote at one moment: the metadata of all segments, and each object with its size and time of change."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    objects: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A backfill that ran twice: what each window's run committed, and what was remote after either time."""

    committed: dict[datetime, Committed]
    committed_again: dict[datetime, Committed]
    after: Remote
    after_again: Remote


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the pictures show, as far as it can be said in numbers."""

    start: datetime
    by_browser: Backfilled
    by_command_line: Backfilled
    dry_run: Committed
    red_run: DagRun
    red_run_committed: Committed
    red_run_failures: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A log directory of the day before, a store, an Airflow and a browser."""

    root: Path
    start: datetime
    api: AirflowApi
    pages: AirflowPages

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "tiered_storage.yaml"

    def play(self) -> Seen:
        """Do everything once, in order, taking the pictures on the way."""
        self.api.unpause(DAG)
        by_browser = self.backfill_by_browser()
        by_command_line = self.backfill_by_command_line()
        dry_run = self.dry_run()
        red_run = self.red_run()
        self.connection_form()
        return Seen(
            self.start,
            by_browser,
            by_command_line,
            dry_run,
            red_run,
            self.committed(red_run),
            self.api.failures(red_run),
        )

    def window_end(self, number: int) -> datetime:
        """Return the end of the window of that number; the first one, 0, begins where the log does."""
        return self.start + (number + 1) * WINDOW

    def backfill_by_browser(self) -> Backfilled:
        """Ask for a backfill in the form, twice; look at its runs."""
        windows = range(WINDOWS_BY_BROWSER)
        first, last = self.start, self.start + windows[-1] * WINDOW
        asked = datetime.now(UTC)
        button = self.pages.fill_backfill_form(DAG, first, last, "Missing Runs", len(windows))
        self.pages.picture("backfill-form", height=1190)
        self.pages.submit(button)
        committed = self.wait_for(windows, asked)
        after = self.remote()
        self.show_copied(windows[1])
        asked = datetime.now(UTC)
        self.pages.submit(self.pages.fill_backfill_form(DAG, first, last, "All Runs", len(windows)))
        return Backfilled(committed, self.wait_for(windows, asked), after, self.remote())

    def show_copied(self, window: int) -> None:
        """Take the pictures of a backfill that has ended, and of one run of it."""
        run_id = _run_id(self.window_end(window))
        self.pages.open_dags()
        self.pages.picture("dags", height=840)
        self.pages.open_runs(DAG)
        self.pages.picture("backfill-runs", height=760)
        self.pages.open_graph(DAG, run_id)
        self.pages.picture("copy-run", height=640)
        self.pages.open_mapped(DAG, run_id, "commit_metadata")
        self.pages.picture("commit-names", height=640)
        self.pages.open_log(DAG, run_id, "copy", "in the end:")
        self.pages.picture("copy-progress", height=640)
        self.pages.open_report(DAG, run_id, "announce")
        self.pages.picture("run-report", height=520)

    def connection_form(self) -> None:
        """Fill the form of our own connection type in."""
        fields = {"endpoint_url": "https://minio.example:9000", "region_name": "eu-central-1"}
        self.pages.fill_connection_form("Remote storage (Remote Log)", fields)
        self.pages.picture("connection-form", height=840)

    def backfill_by_command_line(self) -> Backfilled:
        """Ask Airflow's command line for a backfill, twice."""
        windows = range(WINDOWS_BY_BROWSER, WINDOWS_BY_BROWSER + WINDOWS_BY_COMMAND_LINE)
        asked = datetime.now(UTC)
        self.airflow(windows)
        committed = self.wait_for(windows, asked)
        after = self.remote()
        asked = datetime.now(UTC)
        self.airflow(windows, "--reprocess-behavior", "completed")
        return Backfilled(committed, self.wait_for(windows, asked), after, self.remote())

    def airflow(self, windows: Sequence[int], *options: str) -> None:
        """Create a backfill of those windows as `make airflow` does."""
        first, last = (self.window_end(number) - WINDOW for number in (windows[0], windows[-1]))
        command = [sys.executable, "-m", "tiered_storage_airflow.embedded.airflow_command"]
        command += ["--config", str(self.config), "backfill", "create", "--dag-id", DAG]
        command += ["--from-date", first.isoformat(), "--to-date", last.isoformat()]
        command += ["--max-active-runs", "1", *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_RUN_WITHIN)
        if done.returncode:
            raise AssertionError(f"airflow backfill create failed:\n{done.stdout}\n{done.stderr}")

    def dry_run(self) -> Committed:
        """Ask for a dry run in the form; return what it committed, which should be nothing."""
        button = self.pages.fill_trigger_form(DAG, topics="orders|payments", dry_run=True)
        self.pages.picture("trigger-form", height=840)
        run = self.run_by_form(button, "by_hand_dry_run")
        _expect_state(run, "success")
        self.pages.open_log(DAG, run.run_id, "plan", "are due")
        self.pages.picture("dry-run", height=640)
        return self.committed(run)

    def red_run(self) -> DagRun:
        """Damage a segment that was not copied yet, and ask for a run of all topics."""
        directory = self.root / "kafka-logs" / str(DAMAGED)
        segment = list_segments(directory)[closed_by(DAMAGED, self.start, self.window_end(_last_window()))]
        content = bytearray(segment.log_path.read_bytes())
        content[len(content) // 2] ^= 1
        segment.log_path.write_bytes(content)
        run = self.run_by_form(self.pages.fill_trigger_form(DAG), "by_hand")
        _expect_state(run, "failed")
        [failed] = [task for task in self.api.task_instances(run) if task.state == "failed"]
        self.pages.open_log(DAG, run.run_id, failed.task_id, "CorruptRecordError", failed.map_index)
        self.pages.fold_error("CorruptRecordError")
        self.pages.picture("red-run", height=640)
        return run

    def run_by_form(self, button: Locator, run_id: str) -> DagRun:
        """Start the run of the open form and return it when it has ended."""
        self.pages.name_run(run_id)
        self.pages.submit(button)
        return self.api.wait_for_run(self.api.run(DAG, run_id), _RUN_WITHIN)

    def wait_for(self, windows: Sequence[int], asked: datetime) -> dict[datetime, Committed]:
        """Wait until the backfill asked for at `asked` has ended, each run well; return what each window committed."""
        committed = {}
        for end in map(self.window_end, windows):

            def has_ended(run_id: str = _run_id(end)) -> bool:
                run = self.api.run(DAG, run_id)
                return run.is_finished and run.started is not None and run.started >= asked

            if not wait_until(has_ended, _RUN_WITHIN, interval=1):
                raise TimeoutError(f"the run of the window that ends at {end} has not ended in {_RUN_WITHIN:.0f} s")
            run = self.api.run(DAG, _run_id(end))
            _expect_state(run, "success")
            committed[end] = self.committed(run)
        if not wait_until(lambda: not self.api.running_backfills(DAG), _RUN_WITHIN, interval=1):
            raise TimeoutError(f"{DAG}: a backfill is still in progress {_RUN_WITHIN:.0f} s after its last run")
        return committed

    def committed(self, run: DagRun) -> Committed:
        """Return what the logs of a run's commit_metadata tasks say."""
        return frozenset(
            (partition, int(first), int(last))
            for task in self.api.task_instances(run)
            if task.task_id == "commit_metadata" and task.state in {"success", "failed"}
            for partition, first, last in _COMMITTED.findall(self.api.task_log(task))
        )

    def remote(self) -> Remote:
        """Look at the metadata and into the store."""
        settings = load_settings(self.config)
        with RemoteLogManager.open(settings, wall_clock, store_options(settings)) as remote_log:
            segments = [
                segment
                for partition in remote_log.segments.list_partitions()
                for segment in remote_log.segments.list_remote_log_segments(partition)
            ]
        store = self.root / "remote"
        files = [(path, path.stat()) for path in sorted(store.rglob("*")) if path.is_file()]
        objects = [(str(path.relative_to(store)), status.st_size, status.st_mtime_ns) for path, status in files]
        return Remote(tuple(segments), tuple(objects))


@contextmanager
def stage(root: Path, pictures: Path, port: int) -> Iterator[Stage]:
    """Set everything up below `root`, and take it down again."""
    find_chromium()
    start = start_of_the_day_before(wall_clock)
    write_past_log(root / "kafka-logs", start)
    config = root / "tiered_storage.yaml"
    write_settings(config, root / "kafka-logs", {topic: {"remote.storage.enable": True} for topic in sorted(TOPICS)})
    pictures.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False"}
    running = services.up(EmbeddedAirflow(root, config, port), say=_say, environ=environ)
    try:
        password = read(running.home).admin_password
        with services.connect(running) as api, logged_in(running.url, ADMIN, password, pictures) as pages:
            yield Stage(root, start, api, pages)
    finally:
        services.down(root, say=_say)


def _last_window() -> int:
    return WINDOWS_BY_BROWSER + WINDOWS_BY_COMMAND_LINE - 1


def _run_id(window_end: datetime) -> str:
    return f"backfill__{window_end.isoformat()}"


def _expect_state(run: DagRun, state: str) -> None:
    if run.state != state:
        raise AssertionError(f"{run.dag_id}: run {run.run_id} is {run.state}, not {state}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Take the pictures anew."""
    with (
        tempfile.TemporaryDirectory(prefix="remote-log-") as root,
        stage(Path(root), Path(sys.argv[1]), 8090) as open_stage,
    ):
        open_stage.play()


if __name__ == "__main__":
    main()
