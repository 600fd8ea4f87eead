"""Runs that export earlier intervals again, of which more was copied since; contexts are made up."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from support.files import files_in
from support.metadata_stores import a_step
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, RECORDS, TieredSite
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.tables.export_job import ExportRequest, run_export_groups
from tiered_storage.remote_log.tables.exports import BegunExport, ExportReport, RemoteLogTables
from tiered_storage.remote_log.tables.layout import Interval, TableFolder
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage_airflow.operators import tables
from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator
from tiered_storage_airflow.operators.tables import ExportTopicOperator, PlanExportOperator
from tiered_storage_airflow.runs.summary import RunSummary, summary_path

if TYPE_CHECKING:
    from airflow.sdk import Context


def hours(first: float, end: float) -> Interval:
    return Interval(int(FIRST_TIMESTAMP + first * HOUR_MS), int(FIRST_TIMESTAMP + end * HOUR_MS))


def context(first_hour: float, end_hour: float, run_type: str = "scheduled") -> Context:
    """A run whose data interval has these hours of the log."""

    def hour(number: float) -> datetime:
        return datetime.fromtimestamp((FIRST_TIMESTAMP + number * HOUR_MS) / 1000, UTC)

    dag_run = SimpleNamespace(
        dag_id="export_topic", run_id=f"{run_type} {first_hour}", run_type=run_type,
        data_interval_start=hour(first_hour), data_interval_end=hour(end_hour),
    )  # fmt: skip
    task = SimpleNamespace(try_number=1, task_id="export", xcom_push=lambda **_: None)
    return cast("Context", {"dag_run": dag_run, "ti": task, "params": {}})


def export(of_run: Context, **fields: Any) -> Path:
    """Export the run's interval; returns its folder."""
    operator = ExportTopicOperator(task_id="export", **{"topic": "orders", "max_disorder_minutes": 0, **fields})
    return Path(operator.execute(of_run).removeprefix("file://"))


def figures(site: TieredSite, of_run: Context) -> dict[str, Any]:
    with site.open() as remote_log:
        [summary] = remote_log.context.work.read_report(summary_path(dict(of_run)), RunSummary)
    return dict(summary.figures)


def copy_more(site: TieredSite, segments: int = 2, name: str = "orders-1") -> None:
    for _ in range(segments):
        site.append_segment(name)
    site.copy()


def lose(site: TieredSite, hour: int) -> None:
    """Let what was copied of an hour of orders-0 go."""
    with site.open() as log:
        [segment] = [
            each
            for partition in log.context.segments.list_partitions()
            if partition.partition == 0
            for each in log.context.segments.list_remote_log_segments(partition)
            if each.start_offset == hour * RECORDS and each.state is SegmentState.COPY_SEGMENT_FINISHED
        ]
        lease = log.context.leases.acquire(segment.segment_id.topic_id_partition, "test", 60_000)
        log.context.segments.update_remote_log_segment_metadata(
            a_step(segment, SegmentState.DELETE_SEGMENT_STARTED), lease
        )
        log.context.leases.release(lease)


def copied_of(site: TieredSite, number: int, hour: int) -> Path:
    """Return what was copied of an hour of a partition."""
    name = f"{hour * RECORDS:020d}-"
    [found] = [path for path in site.state.rglob("*.log") if name in path.name and f"/{number}/" in str(path)]
    return found


def rot(site: TieredSite, hour: int) -> None:
    """Flip a bit of what was copied of an hour of orders-0."""
    copied = copied_of(site, 0, hour)
    content = bytearray(copied.read_bytes())
    content[-10] ^= 1
    copied.write_bytes(content)


def two_late(site: TieredSite) -> tuple[Path, Path]:
    """Export the hours 1 and 2, then copy what orders-1 has of them: returns their folders."""
    first, second = export(context(1, 2)), export(context(2, 3))
    copy_more(site)
    return first, second


def records(folder: Path) -> int:
    """How many records the manifest of an interval has."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def test_a_run_exports_what_came_late_to_earlier_intervals(site: TieredSite) -> None:
    first = export(context(1, 3))
    assert figures(site, context(1, 3))["partitions_not_reached"] == 1
    assert records(first) == 3 * RECORDS
    copy_more(site)
    own = export(context(3, 4))
    assert (records(first), records(own)) == (4 * RECORDS, 2 * RECORDS)
    found = figures(site, context(3, 4))
    assert found["into"].endswith(own.name)
    assert found["late_intervals"] == [hours(1, 3).folder]
    assert (found["late_intervals_left"], found["intervals_incomplete"]) == (0, 0)
    # A backfill over the same hours would have made the same files, and finds nothing to change.
    before = files_in(site.state / "exports")
    export(context(1, 3, "backfill"))
    assert figures(site, context(1, 3, "backfill"))["changed"] == "no"
    export(context(4, 5))
    assert figures(site, context(4, 5))["late_intervals"] == []
    assert before.items() <= files_in(site.state / "exports").items()


def test_a_run_takes_so_many_at_most_the_latest_first(site: TieredSite) -> None:
    first, second = two_late(site)
    export(context(3, 4), late_intervals=0)
    export(context(4, 5), late_intervals=1)
    assert figures(site, context(4, 5))["late_intervals"] == [second.name]
    assert figures(site, context(4, 5))["late_intervals_left"] == 1
    export(context(5, 6), late_intervals="1")
    assert figures(site, context(5, 6))["late_intervals"] == [first.name]
    assert (records(first), records(second)) == (2 * RECORDS, 2 * RECORDS)


def test_backfills_export_their_own_intervals_only(site: TieredSite) -> None:
    first, _ = two_late(site)
    export(context(3, 4, "backfill"))
    assert "late_intervals" not in figures(site, context(3, 4, "backfill"))
    assert records(first) == RECORDS + RECORDS


def test_a_dry_run_reports_what_would_be_exported_again(site: TieredSite, capsys: pytest.CaptureFixture[str]) -> None:
    _, second = two_late(site)
    before = files_in(site.state / "exports")
    plan = PlanExportOperator(task_id="plan", topic="orders", late_intervals=1, max_disorder_minutes=0)
    plan.execute(context(3, 4))
    assert files_in(site.state / "exports") == before
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([second.name], 1)
    assert f"{second.name} is exported again" in capsys.readouterr().out


def test_an_interval_that_another_run_exports_is_left_to_it(site: TieredSite) -> None:
    first, second = two_late(site)
    with site.open() as remote_log:
        request = ExportRequest(TableQuery("orders"), hours(2, 3), remote_log.context.settings.export_url)
        with remote_log.tables.export(request, "a backfill"):
            export(context(3, 4), late_intervals=1)
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([first.name], 1)
    assert records(second) == RECORDS
    export(context(4, 5))
    assert figures(site, context(4, 5))["late_intervals"] == [second.name]


def test_a_failed_late_export_fails_the_task_after_its_own_interval(site: TieredSite) -> None:
    first, second = two_late(site)
    gone = copied_of(site, 1, 2)
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(AirflowException, match=f"1 blocks .*{second.name} "):
        export(context(3, 4), isolation="read_uncommitted", late_intervals=1)
    found = figures(site, context(3, 4))
    assert (found["changed"], found["late_intervals"], found["late_intervals_left"]) == ("yes", [first.name], 1)
    gone.write_bytes(content)
    export(context(3, 4), isolation="read_uncommitted")
    assert figures(site, context(3, 4))["late_intervals"] == [second.name]
    assert records(second) == 2 * RECORDS


def test_an_interval_with_an_allowed_gap_is_exported_again(site: TieredSite) -> None:
    lose(site, 1)
    first = export(context(1, 3), allow_gaps=True)
    assert records(first) == 2 * RECORDS
    copy_more(site)
    lose(site, 1)
    export(context(3, 4))
    assert figures(site, context(3, 4))["late_intervals"] == [first.name]
    assert records(first) == 3 * RECORDS
    export(context(4, 5))
    found = figures(site, context(4, 5))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([], 0)


def test_a_gap_that_came_later_is_reported_and_neither_fails_the_run_nor_takes_the_place_of_another(
    site: TieredSite, capsys: pytest.CaptureFixture[str]
) -> None:
    older = export(context(0, 1))
    (older / "_SUCCESS").unlink()
    newer = export(context(2, 3), late_intervals=0)
    copy_more(site, 4)
    lose(site, 2)
    before = files_in(newer)
    export(context(5, 6), late_intervals=1)
    found = figures(site, context(5, 6))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([older.name], 1)
    assert (older / "_SUCCESS").exists()
    assert files_in(newer) == before
    assert re.search(f"{newer.name} .*not exported.* orders-0: offsets 20 to 29", capsys.readouterr().out)


def test_an_export_that_would_lose_records_is_refused_and_fails_no_run(
    site: TieredSite, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_late(site)
    rot(site, 2)
    export(context(3, 4), late_intervals=1)
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([first.name], 1)
    assert records(second) == RECORDS
    assert re.search(f"{second.name} .*not exported.*10 records of partition 0", capsys.readouterr().out)


def test_a_run_tries_three_times_as_many_at_most(site: TieredSite, capsys: pytest.CaptureFixture[str]) -> None:
    """Each may have been exported whole before it turns out that it cannot be committed."""
    quarters = [export(context(2 + n / 4, 2 + (n + 1) / 4), late_intervals=0) for n in range(4)]
    copy_more(site, 2)
    lose(site, 2)
    export(context(5, 6), late_intervals=1)
    found = figures(site, context(5, 6))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([], 4)
    tried = capsys.readouterr().out
    assert [each.name in re.findall(r"(interval=\S+) was not exported", tried) for each in quarters] == [
        False,
        *[True] * 3,
    ]


def test_messages_on_the_own_interval_come_before_those_on_late_ones(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline nothing can be reported."""

    def takes_too_long(*_: object) -> None:
        raise AirflowTaskTimeout

    monkeypatch.setattr(RemoteLogTables, "late_intervals", takes_too_long)
    rot(site, 1)
    with pytest.raises(AirflowTaskTimeout):
        export(context(1, 2))
    found = figures(site, context(1, 2))
    assert (found["records"], found["dead_letters"]) == (RECORDS, 1)
    assert "late_intervals" not in found
    [letters] = (site.state / "work").rglob("dead-letters.jsonl")
    assert len(letters.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (ConfigurationError("fewer"), False),
        (RemoteObjectNotFoundError("a gap"), False),
        (AirflowFailException("a block"), False),
        (AirflowException("a worker died"), True),
        (RemoteStorageError("away"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_fails_only_for_late_intervals_that_another_try_may_export(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, error: Any, *, fails: bool
) -> None:
    first, second = two_late(site)
    commit = BegunExport.commit

    def fail_for_the_second(begun: BegunExport, outcomes: Any) -> ExportReport:
        if begun.request.interval.folder == second.name:
            raise error
        return commit(begun, outcomes)

    monkeypatch.setattr(BegunExport, "commit", fail_for_the_second)
    with pytest.raises(type(error)) if fails else nullcontext():
        export(context(3, 4))
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([first.name], 1)


def test_the_own_interval_is_exported_though_late_ones_cannot_be_found(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: TableFolder) -> None:
        raise RemoteStorageError("the store does not answer")

    monkeypatch.setattr(TableFolder, "is_ours", fails)
    with pytest.raises(RemoteStorageError, match="does not answer"):
        export(context(1, 2))
    assert figures(site, context(1, 2))["records"] == 2 * RECORDS


SPARK_SUBMIT = """#!{python}
import json, os, sys
from pathlib import Path
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess
from tiered_storage.remote_log.tables.export_job import run_export_groups

with Path({seen!r}).open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
_, work_url, _, folder, _, store = sys.argv[-6:]
run_export_groups(JobAccess.parse(work_url, folder, store, os.environ.get(JOB_SECRETS, "")), [0])
"""
"""Does the work of the job's first group, with no Spark."""


def test_each_interval_is_a_job_of_its_own_for_spark(
    site: TieredSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's hook takes the arguments once: a second job of the same task needs another one."""
    two_late(site)
    seen, program = tmp_path / "seen.jsonl", tmp_path / "spark-submit"
    program.write_text(SPARK_SUBMIT.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr(tables, "EXPORT_HERE_BYTES", 0)

    export(context(3, 4), conf={"spark.ui.enabled": "true"})

    submitted = [json.loads(line) for line in seen.read_text().splitlines()]
    assert len({arguments[-3] for arguments in submitted}) == len(submitted) == 3
    for arguments in submitted:
        assert Path(arguments[-7]).name == "export_parquet.py"
        # Quiet, with no pages of its own, as far as the operator's own conf does not say otherwise.
        assert {"spark.log.level=WARN", "spark.ui.enabled=true"} <= set(arguments)
    assert figures(site, context(3, 4))["late_intervals"] == [hours(2, 3).folder, hours(1, 2).folder]


@pytest.mark.parametrize("is_killed", [True, False], ids=["SIGTERM", "execution_timeout"])
def test_a_task_that_is_ending_begins_no_further_interval(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """Airflow's timer rings once, and SIGTERM raises nothing: what follows would run without any limit."""
    _, second = two_late(site)
    submitted: list[str] = []

    def end_in_the_second(operator: SparkGroupsOperator, _: object) -> None:
        work_url, folder, store = ((operator.application_args or [])[i] for i in (1, 3, 5))
        submitted.append(folder)
        run_export_groups(JobAccess.parse(work_url, folder, store, operator.job_environment[JOB_SECRETS]), [0])
        if len(submitted) == 2 and is_killed:
            operator.on_kill()
            raise AirflowException("spark-submit was killed")
        if len(submitted) == 2:
            raise AirflowTaskTimeout

    monkeypatch.setattr(SparkSubmitOperator, "execute", end_in_the_second)
    monkeypatch.setattr(tables, "EXPORT_HERE_BYTES", 0)

    export(context(3, 4))

    assert len(submitted) == 2
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([second.name], 1)
