"""The demo from its first step to its last. Any broken promise ends it with an error."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from tiered_storage.clock import wall_clock
from tiered_storage.private_files import make_private_folder
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.demo.comparison import Compared, compare, compare_by_service
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition
from tiered_storage_airflow.demo.gateway import compare_by_gateway
from tiered_storage_airflow.demo.limits import (
    TopicLimits,
    choose_limits,
    ensure_enough_remains,
    readable_segments,
    segment_sizes,
    start_after_expiry,
)
from tiered_storage_airflow.demo.report import PartitionRow, ensure_all_was_shown, print_report, rows
from tiered_storage_airflow.demo.sample import COMPACTED_TOPIC, copy_log_directory, write_sample
from tiered_storage_airflow.demo.setting_up import DemoPlaces, expect_refusal, free_port, tiered_storage
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun, TaskInstance
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE, EmbeddedAirflow
from tiered_storage_airflow.forms.fields import TOPICS_VARIABLE

RUN_WITHIN = 600.0


def run_dag(
    api: AirflowApi, dag_id: str, report: Callable[[str], None], conf: Mapping[str, object] | None = None
) -> None:
    """Trigger a run of `dag_id` by hand, unpause the DAG and wait until the run has succeeded."""
    # Queue it before unpausing starts the scheduled run, which then finds nothing to do.
    run = api.trigger(dag_id, conf, run_after=datetime.now(UTC) - timedelta(days=1))
    api.unpause(dag_id)
    _finish(api, run, report)


def wait_for_asset_run(api: AirflowApi, dag_id: str, since: datetime, report: Callable[[str], None]) -> None:
    """Wait until the run of `dag_id` that an asset event of `since` or later began has succeeded."""
    _finish(api, api.wait_for_asset_triggered_run(dag_id, since, RUN_WITHIN), report)


def _finish(api: AirflowApi, run: DagRun, report: Callable[[str], None]) -> None:
    logged: set[tuple[str, str | None]] = set()

    def show(_: DagRun, tasks: list[TaskInstance]) -> None:
        for task in tasks:
            if task.state in {"running", "success", "failed"} and (task.name, task.state) not in logged:
                logged.add((task.name, task.state))
                report(f"  {run.dag_id}.{task.name}: {task.state}")

    finished = api.wait_for_run(run, RUN_WITHIN, show)
    if finished.state != "success":
        raise DemoError(f"{run.dag_id}: run {run.run_id} is {finished.state}\n{api.failures(finished)}")


@dataclass(slots=True)
class Demo:
    """One run of the demo, on a log directory of its own making or on a private copy of `original`."""

    places: DemoPlaces
    original: Path | None
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Run every step. Raises TieredStorageError if something is not as promised."""
        services.down(self.places.state, report=self.report)
        shutil.rmtree(self.places.state, ignore_errors=True)
        make_private_folder(self.places.state)
        with self.step("write the log directory" if self.original is None else "copy the log directory"):
            expected = self.write_log_directory()
            limits = choose_limits(self.places.log_directory, {partition.topic for partition in expected})
            sizes = segment_sizes(self.places.log_directory)
        with self.step("switch topics on"):
            self.switch_on(limits)
        with self.step("start Airflow"):
            airflow = EmbeddedAirflow(self.places.state, self.places.config, free_port())
            # Use all topics of the demo's directory and its own database, whatever the user's own variables say.
            environ = {**os.environ, f"AIRFLOW_VAR_{TOPICS_VARIABLE.upper()}": ".*", DATABASE_VARIABLE: ""}
            running = services.up(airflow, report=self.report, environ=environ)
        try:
            with services.connect(running) as api:
                table_rows = self.tier(api, expected, limits, sizes)
        finally:
            with self.step("stop Airflow"):
                services.down(self.places.state, report=self.report)
        self.console.print()
        print_report(table_rows, self.seconds, self.console)
        ensure_all_was_shown(table_rows)

    def write_log_directory(self) -> list[ExpectedPartition]:
        """Write the logs to tier; return what must be read back."""
        if self.original is None:
            return write_sample(self.places.log_directory, wall_clock())
        copied = copy_log_directory(self.original, self.places.log_directory)
        for notice in copied.notices:
            self.report(f"  warning: {notice}")
        self.report(
            "  the end of each log is taken as stable (log.end.is.stable), open transactions apart; the high "
            "watermarks that the broker wrote down last are not looked at"
        )
        return list(copied.expected)

    def switch_on(self, limits: Sequence[TopicLimits]) -> None:
        """Enable the topics, allow deletion from them, set how much stays local; see that compaction is refused."""
        compacted = [COMPACTED_TOPIC] if self.original is None else []
        self.places.write_config(limits, compacted)
        for topic in compacted:
            self.report(f"  as it should be: {expect_refusal(self.places, 'topics', 'enable', topic)}")

    def tier(
        self,
        api: AirflowApi,
        expected: Sequence[ExpectedPartition],
        limits: Sequence[TopicLimits],
        sizes: Mapping[str, Mapping[int, int]],
    ) -> list[PartitionRow]:
        """Copy, trim, read, expire, read again, audit; return where each partition's records are at the end."""
        since = datetime.now(UTC)
        api.unpause("enforce_local_retention")
        with self.step("copy"):
            run_dag(api, "copy_segments", self.report)
        with self.step("trim local logs"):
            wait_for_asset_run(api, "enforce_local_retention", since, self.report)
        with self.step("read and compare all"):
            before = self.compare_all(expected, {str(each): each.log_start_offset for each in expected})
            readable = self.readable_segments(expected)
        with self.step("read by offset and by time through the read service"):
            count = sum(compare_by_service(api.content, each, before[str(each)].start_offset) for each in expected)
            self.report(f"  {count:,} records came back over HTTP as they were written")
        with self.step("expire"):
            for limit in limits:
                if limit.topic in {each.topic for each in expected}:
                    tiered_storage(
                        self.places, "topics", "set", limit.topic, f"retention.bytes={limit.retention_bytes}"
                    )
            run_dag(api, "expire_remote_segments", self.report)
        with self.step("read and compare what remains"):
            left = self.readable_segments(expected)
            retention = {limit.topic: limit.retention_bytes for limit in limits}
            starts = {
                name: start_after_expiry(compared.start_offset, readable[name], left[name])
                for name, compared in before.items()
            }
            for each in expected:
                name = str(each)
                if starts[name] > before[name].start_offset:
                    ensure_enough_remains(name, starts[name], sizes[name], retention[each.topic])
            after = self.compare_all(expected, starts)
        with self.step("audit"):
            run_dag(api, "audit_remote_log", self.report, {"deep": True})
        with self.step("read all with a Kafka client through the gateway"):
            read = compare_by_gateway(self.places, expected, starts)
            written = sum(each.records for each in before.values())
            self.report(
                f"  {read:,} records came back to confluent-kafka of {written:,} that were written; "
                f"{written - read:,} have expired"
            )
        with self.remote_log() as remote_log:
            return rows(remote_log, expected, before, after)

    def compare_all(self, expected: Sequence[ExpectedPartition], starts: Mapping[str, int]) -> dict[str, Compared]:
        """Compare every partition, by name, from where it must start to its end, from both tiers."""
        with self.remote_log() as remote_log:
            return {str(each): compare(remote_log, each, starts[str(each)]) for each in expected}

    def readable_segments(self, expected: Sequence[ExpectedPartition]) -> dict[str, dict[str, int]]:
        """Return the end offsets of each partition's remote segments, by its name and the segment's id."""
        with self.remote_log() as remote_log:
            return {str(each): readable_segments(remote_log, each) for each in expected}

    def remote_log(self) -> RemoteLogManager:
        """Open the remote log that the demo works on."""
        settings = load_settings(self.places.config)
        return RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print that a step begins, and keep how many seconds it took."""
        self.report(f"{name} …")
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun

    def report(self, text: str) -> None:
        """Print a line to the console."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
