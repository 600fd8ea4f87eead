"""A topic goes to Parquet by runs of export_topic: by hand, by backfills, through Spark, with dead letters."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.spark_in_process import SparkInProcess
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, RECORDS, TIERED, TieredSite
from tiered_storage_airflow.operators import tables

FORM = {
    "topic": "orders",
    "from_time": str(FIRST_TIMESTAMP + HOUR_MS),
    "to_time": str(FIRST_TIMESTAMP + 3 * HOUR_MS),
    "max_disorder_minutes": 0,
}


def a_copied_topic(site: TieredSite) -> None:
    """Four segments of an hour each in orders-0, two in orders-1."""
    site.write_logs({"orders-0": 4, "orders-1": 2})
    site.configure({"orders": TIERED})
    site.copy()


def exported(site: TieredSite) -> dict[str, list[int]]:
    """The offsets in each file of rows, by its name in the table's folder."""
    table = site.state / "exports" / "orders"
    return {
        str(path.relative_to(table)): pq.read_table(path).column("offset").to_pylist()
        for path in sorted(table.rglob("*.parquet"))
    }


def contents(site: TieredSite) -> dict[str, str]:
    files = (path for path in (site.state / "exports").rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_exports_an_interval_and_a_second_one_changes_nothing(airflow: AirflowHome, site: TieredSite) -> None:
    a_copied_topic(site)
    planned = airflow.run("export_topic", {**FORM, "dry_run": True})
    assert (planned.state, planned.tasks["export"]) == ("success", "skipped")
    assert "orders-0: offsets 0 to 39 " in planned.log
    assert not (site.state / "exports").exists()
    run = airflow.run("export_topic", FORM)
    assert run.state == "success", run.messages
    expected = [list(range(RECORDS, 3 * RECORDS)), list(range(RECORDS, 2 * RECORDS))]
    assert list(exported(site).values()) == expected
    assert "records: 30" in run.log
    assert mentions(run.log, "partitions 1", "later run")
    before = contents(site)
    again = airflow.run("export_topic", FORM)
    assert again.state == "success"
    assert "nothing was changed" in again.log
    assert contents(site) == before


def test_late_copies_are_exported_by_the_next_run(airflow: AirflowHome, site: TieredSite) -> None:
    a_copied_topic(site)
    assert airflow.run("export_topic", FORM).state == "success"
    first = exported(site)
    for _ in range(2):
        site.append_segment("orders-1")
    site.copy()
    next_hour = {"from_time": FORM["to_time"], "to_time": str(FIRST_TIMESTAMP + 4 * HOUR_MS)}
    planned = airflow.run("export_topic", {**FORM, **next_hour, "dry_run": True})
    assert "is exported again" in planned.log
    assert exported(site) == first
    left = airflow.run("export_topic", {**FORM, **next_hour, "late_intervals": 0})
    assert left.state == "success", left.messages
    assert first.items() < exported(site).items()
    run = airflow.run("export_topic", {**FORM, **next_hour})
    assert run.state == "success", run.messages
    assert "late intervals: interval=" in run.log
    for name, offsets in first.items():
        end = 3 * RECORDS
        assert exported(site)[name] == list(range(RECORDS, end)), offsets
    after = contents(site)
    assert airflow.run("export_topic", FORM).state == "success"
    assert contents(site) == after


def test_a_backfill_gives_a_folder_a_day_and_the_same_files_once_more(airflow: AirflowHome, site: TieredSite) -> None:
    a_copied_topic(site)
    day = datetime.fromtimestamp(FIRST_TIMESTAMP / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)

    def backfill() -> list[str]:
        import unittest.mock

        with unittest.mock.patch.dict("os.environ", {"AIRFLOW_VAR_REMOTE_LOG_EXPORT_TOPIC": "orders"}):
            return [run.state for run in airflow.backfill("export_topic", day, day + timedelta(days=1))]

    assert set(backfill()) == {"success"}
    offsets = sorted(offset for name, found in exported(site).items() if "/00000-" in name for offset in found)
    assert offsets == list(range(4 * RECORDS))
    before = contents(site)
    assert set(backfill()) == {"success"}
    assert contents(site) == before


def test_much_is_exported_by_spark(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_copied_topic(site)
    monkeypatch.setattr(tables, "EXPORT_HERE_BYTES", 0)
    run = airflow.run("export_topic", FORM)
    assert run.state == "success", run.messages
    [job] = spark.submitted
    assert Path(job.application).name == "export_parquet.py"
    assert sum(map(len, exported(site).values())) == 3 * RECORDS


def test_undecodable_records_are_reported_and_kept_apart(airflow: AirflowHome, site: TieredSite) -> None:
    a_copied_topic(site)
    [broken] = [path for path in site.state.rglob("*.log") if f"{RECORDS:020d}-" in path.name and "/0/" in str(path)]
    raw = bytearray(broken.read_bytes())
    raw[-10] ^= 1
    broken.write_bytes(raw)
    run = airflow.run("export_topic", FORM)
    assert run.state == "success", run.messages
    assert "dead letters: 1" in run.log
    [letters] = (site.state / "exports").rglob("_dead_letters.jsonl")
    letter = json.loads(letters.read_text())
    assert (letter["partition"], letter["first_offset"], letter["last_offset"]) == (0, RECORDS, 2 * RECORDS - 1)
    assert "CRC" in letter["reason"]


def test_without_a_topic_nothing_is_done(airflow: AirflowHome, site: TieredSite) -> None:
    a_copied_topic(site)
    run = airflow.run("export_topic")
    assert (run.state, run.tasks["export"]) == ("success", "skipped")
    assert not (site.state / "exports").exists()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"topic": "payments"}, "topic 'payments' was ever"),
        ({"partitions": "7"}, "of its partitions 7"),
        ({"to_time": ""}, "give both, or neither"),
        ({"from_time": FORM["to_time"]}, "give a later end"),
        ({"to_time": "2090-01-01"}, "ends at 2090-01-01 00:00:00 UTC"),
        ({"to_time": "9" * 16}, "ends at 9999999999999999 ms"),
        ({"from_time": "", "to_time": ""}, "from_time and to_time"),
    ],
    ids=str,
)
def test_invalid_values_fail_the_run_and_are_explained(
    airflow: AirflowHome, site: TieredSite, form: dict[str, str], message: str
) -> None:
    a_copied_topic(site)
    run = airflow.run("export_topic", {**FORM, **form})
    assert run.state == "failed"
    assert message in run.messages
    assert exported(site) == {}
