"""What the browser tests play on: a log directory of the day before, a store, an Airflow of its own and a browser.

The Airflow's schedules are switched off, unless a test asks for them: each run is one that a person triggered.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml
from playwright.sync_api import Locator

from browser.airflow_pages import AirflowPages, find_chromium, logged_in
from browser.past_log import TOPICS, WINDOW, start_of_the_day_before, write_past_log, write_settings
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun, TaskInstance
from tiered_storage_airflow.embedded.credentials import ADMIN, read
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE, EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import wait_until

COPY = "copy_segments"
RUN_WITHIN = 600.0
"""Seconds."""
_COMMITTED = re.compile(r"committed: (\S+) offsets (\d+) to (\d+)")

Committed = frozenset[tuple[str, int, int]]
"""Partitions, and the offsets (inclusive) of a segment that became visible."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What is remote at one moment: the metadata of all segments, and each object with its size and time of change."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    objects: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """All of it below `root`; the log's records begin at `start`."""

    root: Path
    start: datetime
    api: AirflowApi
    pages: AirflowPages

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "tiered_storage.yaml"

    @property
    def log_directory(self) -> Path:
        """Where the broker would keep its logs."""
        return self.root / "kafka-logs"

    @contextmanager
    def changed_settings(self, settings: Mapping[str, object]) -> Iterator[None]:
        """Let every task that begins meanwhile find `settings` in the settings file, also in place of others there."""
        before = self.config.read_text("utf-8")
        self.config.write_text(yaml.safe_dump({**yaml.safe_load(before), **settings}), "utf-8")
        try:
            yield
        finally:
            self.config.write_text(before, "utf-8")

    def task(self, run: DagRun, task_id: str) -> TaskInstance:
        """Return the task of a run, one that is not mapped, as it is now."""
        return next(task for task in self.api.task_instances(run) if task.task_id == task_id)

    def is_paused(self, dag_id: str) -> bool:
        """Whether a DAG is switched off."""
        return next(dag.is_paused for dag in self.api.dags() if dag.dag_id == dag_id)

    def first_scheduled_run(self, dag_id: str) -> DagRun:
        """Wait until the schedule of a DAG has started a run, and that run has ended; return it, however it ended."""
        found: list[str] = []

        def is_there() -> bool:
            query = {"run_type": "scheduled", "order_by": "run_after", "limit": "1"}
            rows = json.loads(self.api.content(f"/api/v2/dags/{dag_id}/dagRuns", query))["dag_runs"]
            found[:] = [row["dag_run_id"] for row in rows]
            return bool(found)

        if not wait_until(is_there, RUN_WITHIN, interval=1):
            raise TimeoutError(f"{dag_id}: its schedule has started no run in {RUN_WITHIN:.0f} s")
        return self.api.wait_for_run(self.api.run(dag_id, found[0]), RUN_WITHIN)

    def window_end(self, number: int) -> datetime:
        """Return the end of the window of that number; the first one, 0, begins where the log does."""
        return self.start + (number + 1) * WINDOW

    def run_by_form(self, dag_id: str, button: Locator, run_id: str, state: str = "success") -> DagRun:
        """Start the run of the open form; return it when it has ended, which it has to in `state`."""
        self.pages.name_run(run_id)
        self.pages.submit(button)
        run = self.api.wait_for_run(self.api.run(dag_id, run_id), RUN_WITHIN)
        self.expect_state(run, state)
        return run

    def expect_state(self, run: DagRun, state: str) -> None:
        """Raise AssertionError, with what the failed tasks said, unless the run ended in `state`."""
        if run.state != state:
            raise AssertionError(f"{run.dag_id}: {run.run_id} is {run.state}, not {state}\n{self.api.failures(run)}")

    def show_failure(self, run: DagRun, error: str) -> None:
        """Go to the log of the one task that failed, where it says `error`, with the traceback closed."""
        [failed] = [task for task in self.api.task_instances(run) if task.state == "failed"]
        self.pages.open_log(run.dag_id, run.run_id, failed.task_id, error, failed.map_index)
        self.pages.fold_errors(error)

    def committed(self, run: DagRun) -> Committed:
        """Return the logs of a run's commit_metadata tasks."""
        return frozenset(
            (partition, int(first), int(last))
            for task in self.api.task_instances(run)
            if task.task_id == "commit_metadata" and task.state in {"success", "failed"}
            for partition, first, last in _COMMITTED.findall(self.api.task_log(task))
        )

    def remote(self) -> Remote:
        """Look at the metadata and into the store."""
        settings = load_settings(self.config)
        with RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True) as remote_log:
            segments = [
                segment
                for partition in remote_log.context.segments.list_partitions()
                for segment in remote_log.context.segments.list_remote_log_segments(partition)
            ]
        store = self.root / "remote"
        files = [(path, path.stat()) for path in sorted(store.rglob("*")) if path.is_file()]
        objects = [(str(path.relative_to(store)), status.st_size, status.st_mtime_ns) for path, status in files]
        return Remote(tuple(segments), tuple(objects))


@contextmanager
def stage(root: Path, pictures: Path, port: int, *, schedules: bool = False) -> Iterator[Stage]:
    """Set everything up below `root`, and take it down again; with `schedules`, DAGs that are on also run by theirs."""
    find_chromium()
    start = start_of_the_day_before(wall_clock)
    write_past_log(root / "kafka-logs", start)
    config = root / "tiered_storage.yaml"
    topic = {"remote.storage.enable": True, "remote.deletion.allowed": True}
    write_settings(config, root / "kafka-logs", dict.fromkeys(sorted(TOPICS), topic))
    pictures.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": str(schedules), DATABASE_VARIABLE: ""}
    running = services.up(EmbeddedAirflow(root, config, port), report=_report, environ=environ)
    try:
        password = read(running.home).admin_password
        with services.connect(running) as api, logged_in(running.url, ADMIN, password, pictures) as pages:
            yield Stage(root, start, api, pages)
    finally:
        services.down(root, report=_report)


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
