"""Several exports in one run of a DAG: contexts are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, RECORDS, TIERED, TieredSite
from tiered_storage.remote_log.tables.export_commit import IntervalCommit
from tiered_storage.remote_log.tables.export_job import ExportJob
from tiered_storage_airflow.operators.tables import ExportTopicOperator
from tiered_storage_airflow.runs.summary import RunSummary, summary_path

if TYPE_CHECKING:
    from airflow.sdk import Context

TASKS = [("export_secrets", -1), ("export", 1)]
"""Another task of the run, and another one of a mapped task."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site with four remote hours of two topics."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    site.write_logs({"orders-0": 4, "secrets-0": 4})
    site.configure({"orders": TIERED, "secrets": TIERED})
    site.copy()
    return site


def context(task_id: str = "export", map_index: int = -1, run_id: str = "run") -> Context:
    dag_run = SimpleNamespace(dag_id="exports", run_id=run_id, run_type="manual")
    task = SimpleNamespace(try_number=1, task_id=task_id, map_index=map_index, xcom_push=lambda **_: None)
    return cast("Context", {"dag_run": dag_run, "ti": task, "params": {}})


def export(of_task: Context, first_hour: int = 1, end_hour: int = 3, **fields: Any) -> Path:
    """Export these hours; returns the interval's folder."""
    begin, end = (str(FIRST_TIMESTAMP + hour * HOUR_MS) for hour in (first_hour, end_hour))
    operator = ExportTopicOperator(
        task_id="export", **{"topic": "orders", "from_time": begin, "to_time": end, "late_intervals": 0, **fields}
    )
    return Path(operator.execute(of_task).removeprefix("file://"))


def once_before(monkeypatch: pytest.MonkeyPatch, where: type, name: str, meanwhile: Callable[[], object]) -> None:
    """Let something happen before the first call of a method."""
    method = getattr(where, name)

    def call(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, name, method)
        meanwhile()
        return method(*arguments, **named)

    monkeypatch.setattr(where, name, call)


def column(folder: Path, name: str) -> list[Any]:
    """The values of one column in all files below a folder, as a reader of the whole folder finds them."""
    paths = sorted(folder.rglob("*.parquet"))
    return [value for path in paths for value in pq.ParquetFile(path).read([name]).column(name).to_pylist()]


@pytest.mark.parametrize(("task_id", "map_index"), TASKS, ids=["task", "mapped"])
def test_records_of_one_export_never_come_into_the_table_of_another(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, task_id: str, map_index: int
) -> None:
    others = context(task_id, map_index)
    once_before(monkeypatch, ExportJob, "run_group", lambda: export(others, topic="secrets"))
    place = export(context(map_index=0 if map_index > 0 else -1))
    assert column(place, "topic") == ["orders"] * 2 * RECORDS
    assert column(place.parents[1] / "secrets", "topic") == ["secrets"] * 2 * RECORDS


@pytest.mark.parametrize(("task_id", "map_index"), TASKS, ids=["task", "mapped"])
def test_each_export_of_a_run_keeps_its_figures(site: TieredSite, task_id: str, map_index: int) -> None:
    tasks = (context(map_index=0 if map_index > 0 else -1), context(task_id, map_index))
    places = [export(of_task, hour, hour + 1) for hour, of_task in enumerate(tasks)]
    with site.open() as remote_log:
        summaries = [remote_log.context.work.read_report(summary_path(dict(of_task)), RunSummary) for of_task in tasks]
    assert [Path(str(summary.figures["into"])).name for [summary] in summaries] == [place.name for place in places]
    assert len(list(site.state.rglob("dead-letters.jsonl"))) == 2


@pytest.mark.parametrize(("task_id", "map_index"), TASKS, ids=["task", "mapped"])
def test_two_intervals_of_one_run_take_no_lease_from_one_another(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, task_id: str, map_index: int
) -> None:
    """The other one waits for its turn, and is tried again; the first one stays whole."""
    monkeypatch.setattr("tiered_storage.remote_log.tables.exports.WAIT_SECONDS", 0.0)
    first = context(map_index=0 if map_index > 0 else -1)
    assert (export(first) / "_SUCCESS").exists()
    errors: list[Exception] = []

    def meanwhile() -> None:
        with pytest.raises(Exception, match=r"exports/run/export(\[0\])?") as raised:
            export(context(task_id, map_index), 3, 4)
        errors.append(raised.value)

    once_before(monkeypatch, IntervalCommit, "_put", meanwhile)
    assert (export(first, codec="snappy") / "_SUCCESS").exists()
    [error] = errors
    assert not isinstance(error, AirflowFailException)
    assert (export(context(task_id, map_index), 3, 4) / "_SUCCESS").exists()


def test_a_retry_takes_over_what_its_killed_try_held(site: TieredSite, monkeypatch: pytest.MonkeyPatch) -> None:
    once_before(monkeypatch, IntervalCommit, "_put", lambda: export(context(), codec="gzip"))
    with pytest.raises(AirflowFailException, match="LeaseLostError"):
        export(context())
