"""The operators of exports, with contexts made up: the runs of their DAG are in tests/dags."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from support.spark_in_process import SparkInProcess
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, RECORDS, TieredSite
from tiered_storage.errors import (
    LeaseHeldError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage_airflow.operators import tables
from tiered_storage_airflow.operators.tables import ExportTopicOperator, PlanExportOperator
from tiered_storage_airflow.runs.summary import RunSummary, summary_path

if TYPE_CHECKING:
    from airflow.sdk import Context


def context(first_hour: int | None = 1, end_hour: int = 3, run_id: str = "run") -> Context:
    """A run whose data interval has these hours of the log; None: it has none."""

    def hour(number: int) -> datetime:
        return datetime.fromtimestamp((FIRST_TIMESTAMP + number * HOUR_MS) / 1000, UTC)

    begin, end = (None, None) if first_hour is None else (hour(first_hour), hour(end_hour))
    dag_run = SimpleNamespace(
        dag_id="export_topic", run_id=run_id, run_type="scheduled", data_interval_start=begin, data_interval_end=end
    )
    task = SimpleNamespace(try_number=1, task_id="export", xcom_push=lambda **_: None)
    return cast("Context", {"dag_run": dag_run, "ti": task, "params": {}})


def export(**fields: Any) -> ExportTopicOperator:
    return ExportTopicOperator(task_id="export", **{"topic": "orders", **fields})


def offsets(place: str) -> dict[str, list[int]]:
    """The offsets in each file of rows below a place."""
    folder = Path(place.removeprefix("file://"))
    return {path.name: pq.read_table(path).column("offset").to_pylist() for path in sorted(folder.glob("*.parquet"))}


def figures(site: TieredSite, of_run: Context) -> dict[str, Any]:
    with site.open() as remote_log:
        [summary] = remote_log.context.work.read_report(summary_path(dict(of_run)), RunSummary)
    return dict(summary.figures)


def test_the_runs_interval_is_exported_and_reported(site: TieredSite) -> None:
    place = export().execute(context())
    assert place == f"{(site.state / 'exports').as_uri()}/orders/{Interval(*hours(1, 3)).folder}"
    assert list(offsets(place).values()) == [list(range(RECORDS, 3 * RECORDS)), list(range(RECORDS, 2 * RECORDS))]
    found = figures(site, context())
    assert (found["records"], found["files"], found["dead_letters"], found["changed"]) == (30, 2, 0, "yes")
    # Of orders-1 two hours are copied; what is copied of orders-0 ends less than an hour after the interval.
    assert found["partitions_not_reached"] == 2
    export(max_disorder_minutes=0).execute(context(4, 5))
    assert figures(site, context(run_id="run"))["partitions_not_reached"] == 2
    export().execute(context(run_id="another"))
    assert figures(site, context(run_id="another"))["changed"] == "no"


def hours(first: int, end: int) -> tuple[int, int]:
    return FIRST_TIMESTAMP + first * HOUR_MS, FIRST_TIMESTAMP + end * HOUR_MS


def test_times_of_the_form_go_before_the_runs_interval(site: TieredSite) -> None:
    begin, end = map(str, hours(0, 1))
    place = export(from_time=begin, to_time=end, partitions="0", codec="snappy").execute(context(None))
    assert list(offsets(place).values()) == [list(range(RECORDS))]
    metadata = pq.ParquetFile(next(Path(place.removeprefix("file://")).glob("*.parquet"))).metadata
    assert metadata.row_group(0).column(1).compression == "SNAPPY"


def test_much_is_exported_by_spark_and_what_died_fails_the_task(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = SparkInProcess()

    def execute(operator: SparkSubmitOperator, of_run: object) -> None:
        spark.execute(operator, of_run)

    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    monkeypatch.setattr(tables, "EXPORT_HERE_BYTES", 0)
    place = export().execute(context())
    assert sum(map(len, offsets(place).values())) == 3 * RECORDS
    [job] = spark.submitted
    assert Path(job.application).name == "export_parquet.py"
    assert job.conf["spark.task.maxFailures"] == "1"

    def dies(*_: object) -> None:
        raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")

    monkeypatch.setattr(SparkSubmitOperator, "execute", dies)
    with pytest.raises(AirflowException, match="Cannot execute: spark-submit"):
        export(codec="gzip").execute(context(run_id="another"))
    assert sum(map(len, offsets(place).values())) == 3 * RECORDS


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (RemoteStorageError("the store does not answer"), False),
        (RemoteObjectNotFoundError("it may have expired since it was planned"), False),
        (RemoteObjectCorruptError("it is broken"), True),
    ],
    ids=["away", "gone", "broken"],
)
def test_a_further_try_is_made_where_that_can_help(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, error: RemoteStorageError, *, is_final: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_log_segment", fails)
    with pytest.raises(AirflowException, match="2 blocks ") as raised:
        export(isolation="read_uncommitted").execute(context())
    assert isinstance(raised.value, AirflowFailException) == is_final


def test_dead_letters_are_reported_and_kept(site: TieredSite) -> None:
    [broken] = [path for path in site.state.rglob("*.log") if f"{RECORDS:020d}-" in path.name and "/0/" in str(path)]
    raw = bytearray(broken.read_bytes())
    raw[-10] ^= 1
    broken.write_bytes(raw)
    place = export().execute(context())
    assert list(offsets(place).values()) == [list(range(2 * RECORDS, 3 * RECORDS)), list(range(RECORDS, 2 * RECORDS))]
    assert figures(site, context())["dead_letters"] == 1
    [kept] = site.state.rglob("dead-letters.jsonl")
    assert json.loads(kept.read_text())["first_offset"] == RECORDS
    assert (Path(place.removeprefix("file://")) / "_dead_letters.jsonl").read_text() == kept.read_text()


def test_a_run_waits_for_another_ones_lease(site: TieredSite) -> None:
    with site.open() as remote_log:
        request = ExportRequest(TableQuery("orders"), Interval(*hours(1, 3)), remote_log.context.settings.export_url)
        with remote_log.tables.export(request, "another run"), pytest.raises(LeaseHeldError):
            export().execute(context())


REFUSED: list[tuple[dict[str, Any], int | None, str]] = [
    ({"topic": "payments"}, 1, "topic 'payments' was"),
    ({"partitions": "0,7"}, 1, "of its partitions 7"),
    ({"from_time": "2026-01-01"}, 1, "give both, or neither"),
    ({"from_time": "yesterday", "to_time": "today"}, 1, "is not a time"),
    ({}, None, "from_time and to_time"),
    ({}, 3, "from_time and to_time"),
    ({"isolation": "serializable"}, 1, "read_committed or read_uncommitted"),
    ({"from_time": "9" * 5000, "to_time": "9" * 5000}, 1, "from_time is '999"),
    ({"max_disorder_minutes": "9" * 5000}, 1, "max_disorder_minutes is '999"),
    ({"max_disorder_minutes": "-1"}, 1, "a whole number from 0"),
    ({"codec": "rar"}, 1, "codec 'rar'"),
    ({"allow_gaps": "perhaps"}, 1, "true or false"),
]


@pytest.mark.parametrize(("fields", "first_hour", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_arguments_without_a_meaning_fail_for_good(
    site: TieredSite, fields: dict[str, Any], first_hour: int | None, message: str
) -> None:
    for operator in (export(**fields), PlanExportOperator(task_id="plan", **{"topic": "orders", **fields})):
        if "partitions" in fields and isinstance(operator, PlanExportOperator):
            continue  # it shows what there is
        with pytest.raises(AirflowFailException, match=message):
            operator.execute(context(first_hour))
    assert not (site.state / "exports").exists() or not list((site.state / "exports").rglob("*.parquet"))


def test_a_plan_shows_what_would_be_read_and_writes_nothing(site: TieredSite) -> None:
    plan = PlanExportOperator(task_id="plan", topic="orders")
    plan.execute(context())
    assert figures(site, context())["partitions"] == 2
    assert not (site.state / "exports").exists()
