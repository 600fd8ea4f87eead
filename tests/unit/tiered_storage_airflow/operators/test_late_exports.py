"""Runs that export earlier intervals again, of which more was copied since; contexts are made up."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from support.exported import digests
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, RECORDS, TIERED, TieredSite
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteStorageError
from tiered_storage.remote_log.remote_log_tables import ExportRequest
from tiered_storage.remote_log.tables.export_worker import run_export_group
from tiered_storage.remote_log.tables.late_intervals import LateIntervals
from tiered_storage.remote_log.tables.layout import Interval, TableFolder
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage_airflow.operators import tables
from tiered_storage_airflow.operators.late_exports import LateExports
from tiered_storage_airflow.operators.tables import ExportTopicOperator, PlanExportOperator
from tiered_storage_airflow.run_summary import RunSummary, summary_path

if TYPE_CHECKING:
    from airflow.sdk import Context


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site of which the hours 0 to 3 of orders-0 are remote, and 0 and 1 of orders-1."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    site.write_logs({"orders-0": 4, "orders-1": 2})
    site.configure({"orders": TIERED})
    site.copy()
    return site


def hours(first: int, end: int) -> Interval:
    return Interval(FIRST_TIMESTAMP + first * HOUR_MS, FIRST_TIMESTAMP + end * HOUR_MS)


def context(first_hour: int, end_hour: int, run_type: str = "scheduled") -> Context:
    """A run whose data interval has these hours of the log."""

    def hour(number: int) -> datetime:
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
        [summary] = remote_log.work.read(summary_path(dict(of_run)), RunSummary)
    return dict(summary.figures)


def copy_more(site: TieredSite, segments: int = 2, name: str = "orders-1") -> None:
    for _ in range(segments):
        site.append_segment(name)
    site.copy()


def two_late(site: TieredSite) -> tuple[Path, Path]:
    """Export the hours 1 and 2, then copy what orders-1 has of them: returns their folders."""
    first, second = export(context(1, 2)), export(context(2, 3))
    copy_more(site)
    return first, second


def records(folder: Path) -> int:
    """How many records the manifest of an interval tells."""
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
    assert (found["late_intervals_left"], found["intervals_waiting"], found["intervals_given_up"]) == (0, 0, 0)
    # A backfill over the same hours would have made the same files, and finds nothing to change.
    before = digests(site.state / "exports")
    export(context(1, 3, "backfill"))
    assert figures(site, context(1, 3, "backfill"))["changed"] == "no"
    export(context(4, 5))
    assert figures(site, context(4, 5))["late_intervals"] == []
    assert before.items() <= digests(site.state / "exports").items()


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
    assert figures(site, context(3, 4, "backfill"))["late_intervals"] == []
    assert records(first) == RECORDS + RECORDS


def test_a_dry_run_tells_what_would_be_exported_again(site: TieredSite, capsys: pytest.CaptureFixture[str]) -> None:
    _, second = two_late(site)
    before = digests(site.state / "exports")
    plan = PlanExportOperator(task_id="plan", topic="orders", late_intervals=1, max_disorder_minutes=0)
    plan.execute(context(3, 4))
    assert digests(site.state / "exports") == before
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([second.name], 1)
    assert f"{second.name}: more of it is copied by now: it is exported again" in capsys.readouterr().out


def test_an_interval_that_another_run_exports_is_left_to_it(site: TieredSite) -> None:
    first, second = two_late(site)
    with site.open() as remote_log:
        request = ExportRequest(TableQuery("orders"), hours(2, 3), remote_log.settings.export_url)
        with remote_log.tables.export(request, "a backfill"):
            export(context(3, 4))
    found = figures(site, context(3, 4))
    assert (found["late_intervals"], found["late_intervals_left"]) == ([first.name], 1)
    assert records(second) == RECORDS
    export(context(4, 5))
    assert figures(site, context(4, 5))["late_intervals"] == [second.name]


def test_what_goes_wrong_with_a_late_one_fails_the_task_after_its_own(site: TieredSite) -> None:
    first, second = two_late(site)
    [gone] = [path for path in site.state.rglob("*.log") if f"{2 * RECORDS:020d}-" in path.name and "/1/" in str(path)]
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(AirflowException, match=rf"1 blocks were not exported, and .*{second.name} is as it was"):
        export(context(3, 4), isolation="read_uncommitted")
    found = figures(site, context(3, 4))
    assert (found["changed"], found["late_intervals"], found["late_intervals_left"]) == ("yes", [first.name], 1)
    gone.write_bytes(content)
    export(context(3, 4), isolation="read_uncommitted")
    assert figures(site, context(3, 4))["late_intervals"] == [second.name]
    assert records(second) == 2 * RECORDS


def test_where_nothing_can_be_found_out_the_own_interval_is_exported_all_the_same(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: TableFolder) -> None:
        raise RemoteStorageError("the store does not answer")

    monkeypatch.setattr(TableFolder, "is_ours", fails)
    with pytest.raises(RemoteStorageError, match="does not answer"):
        export(context(1, 2))
    assert figures(site, context(1, 2))["records"] == 2 * RECORDS


def test_what_another_try_may_mend_goes_before_what_none_can() -> None:
    late = LateExports(LateIntervals())
    for error in (RemoteObjectCorruptError("broken"), AirflowFailException("for good"), ConfigurationError("wrong")):
        late.fail(error)
    assert isinstance(late.error, RemoteObjectCorruptError)
    late.fail(RemoteStorageError("away"))
    late.fail(AirflowException("a worker died"))
    assert isinstance(late.error, RemoteStorageError)


def test_each_interval_is_a_job_of_its_own_for_spark(site: TieredSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's hook takes the arguments once: a second job of the same task needs another one."""
    two_late(site)
    jobs: list[str] = []

    def submit(hook: SparkSubmitHook, application: str = "", **_: object) -> None:
        assert Path(application).name == "export_parquet.py"
        _, work_url, _, folder = hook._application_args or []
        jobs.append(folder)
        run_export_group(work_url, folder, 0, {})

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    monkeypatch.setattr(SparkSubmitHook, "_resolve_connection", lambda _: {"master": "local", "spark_binary": "x"})
    monkeypatch.setattr(tables, "EXPORT_HERE_BYTES", 0)
    export(context(3, 4))
    assert len(set(jobs)) == 3
    assert figures(site, context(3, 4))["late_intervals"] == [hours(2, 3).folder, hours(1, 2).folder]
