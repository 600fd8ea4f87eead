"""Backfills copy the segments due by a window's end, whatever the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, TIERED, TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

FIRST = datetime.fromtimestamp(FIRST_TIMESTAMP / 1000, UTC)
FIVE_MINUTES = timedelta(minutes=5)


def test_a_backfill_copies_what_was_closed_by_its_windows_end_and_twice_changes_nothing(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 4, "orders-1": 1})
    site.configure({"orders": TIERED})
    # The third segment begins two hours after the first: at the very end of this window.
    window = FIRST + timedelta(hours=2) - FIVE_MINUTES
    [run] = airflow.backfill("copy_segments", window, window)
    assert run.run_id.startswith("backfill__")
    assert run.state == "success"
    assert site.finished("orders-0") == [0, 10]
    assert site.finished("orders-1") == [0]
    assert airflow.announced_by(run) == ["orders-0", "orders-1"]
    [event] = airflow.events_of(run)
    assert (sorted(event), event["now"]) == (["now", "partitions", "path"], FIRST_TIMESTAMP + 2 * HOUR_MS)

    [again] = airflow.backfill("copy_segments", window, window)
    assert again.state == "success"
    assert again.tasks["copy"] == "skipped"
    assert len(spark.submitted) == 1
    assert len(airflow.events_of(again)) == 1
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1")] == [2, 1]


def test_windows_that_follow_each_other_copy_each_segment_once_and_a_run_by_hand_takes_the_rest(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 4})
    site.configure({"orders": TIERED})
    last = FIRST + timedelta(hours=3) - FIVE_MINUTES
    before, after = airflow.backfill("copy_segments", last - FIVE_MINUTES, last)
    assert [run.state for run in (before, after)] == ["success", "success"]
    assert [airflow.events_of(run)[0]["now"] for run in (before, after)] == [
        FIRST_TIMESTAMP + 3 * HOUR_MS - 300_000,
        FIRST_TIMESTAMP + 3 * HOUR_MS,
    ]
    assert site.finished("orders-0") == [0, 10, 20]
    assert airflow.run("copy_segments").state == "success"
    assert site.finished("orders-0") == [0, 10, 20, 30]
    assert len(site.segments("orders-0")) == 4


def test_backwards_the_latest_window_takes_all_and_the_earlier_ones_find_nothing_left(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 6})
    site.configure({"orders": TIERED})
    last = FIRST + timedelta(hours=4) - FIVE_MINUTES
    after, before = airflow.backfill("copy_segments", last - FIVE_MINUTES, last, backwards=True)
    assert [run.state for run in (after, before)] == ["success", "success"]
    assert airflow.events_of(after)[0]["now"] == FIRST_TIMESTAMP + 4 * HOUR_MS
    assert (after.tasks["copy"], before.tasks["copy"]) == ("success", "skipped")
    assert airflow.events_of(before) == []
    assert site.finished("orders-0") == [0, 10, 20, 30]
    assert len(spark.submitted) == 1


def test_concurrent_windows_copy_each_segment_once_and_a_blocked_one_fails_until_rerun(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 5, "orders-1": 1})
    site.configure({"orders": TIERED})
    window = FIRST + timedelta(hours=2) - FIVE_MINUTES
    later = []
    with airflow.backfilling("copy_segments", window, window + timedelta(hours=1)) as runs:
        spark.meanwhile = lambda: later.append(airflow.finish("copy_segments", runs[-1]))
        first = airflow.finish("copy_segments", runs[0])
        assert first.state == "success"
        # It may not take the window for whole: the first one's window ends an hour earlier.
        assert later[0].state == "failed"
        assert mentions(later[0].messages, "4 segments", "orders-0, orders-1")
    assert site.finished("orders-0") == [0, 10]
    last = window + timedelta(hours=1)
    [again] = airflow.backfill("copy_segments", last, last)
    assert again.state == "success"
    assert site.finished("orders-0") == [0, 10, 20]
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1")] == [3, 1]
    # The same windows once more, over runs that are there: nothing is left to do.
    [once_more] = airflow.backfill("copy_segments", window, window)
    assert (once_more.state, once_more.tasks["copy"]) == ("success", "skipped")


def test_a_backfill_and_a_run_by_hand_at_once_copy_each_segment_once(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": TIERED})
    window = FIRST + timedelta(hours=2) - FIVE_MINUTES
    by_hand = []
    spark.meanwhile = lambda: by_hand.append(airflow.run("copy_segments"))
    [backfill] = airflow.backfill("copy_segments", window, window)
    assert [run.state for run in (backfill, *by_hand)] == ["success", "success"]
    assert site.finished("orders-0") == [0, 10]
    assert airflow.events_of(by_hand[0]) == []
    assert airflow.run("copy_segments").state == "success"
    assert site.finished("orders-0") == [0, 10, 20]
    assert len(site.segments("orders-0")) == 3


def test_a_window_that_another_run_holds_back_is_no_success(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 4})
    site.configure({"orders": TIERED})
    with site.open() as remote_log:
        partition = remote_log.find_partition("orders", 0)
        held = remote_log.context.leases.acquire(partition, "another run", 600_000)
        window = FIRST + timedelta(hours=3) - FIVE_MINUTES
        [run] = airflow.backfill("copy_segments", window, window)
        # The holder's window may end earlier: nobody would ever take what this one left.
        assert run.state == "failed"
        assert mentions(str(run.errors["all_committed"][0]), "3 segments", "orders-0")
        remote_log.context.leases.release(held)
    [again] = airflow.backfill("copy_segments", window, window)
    assert again.state == "success"
    assert site.finished("orders-0") == [0, 10, 20]


def test_a_runs_settings_override_the_file(airflow: AirflowHome, site: TieredSite, spark: SparkInProcess) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    run = airflow.run("copy_segments", {"settings": {"copy.max.segments.per.run": 1}})
    assert run.state == "success"
    assert site.finished("orders-0") == [0]
    wrong = airflow.run("copy_segments", {"settings": {"copy.max.segments.a.run": 1}})
    assert wrong.state == "failed"
    [error] = wrong.errors["plan"]  # once: no second try could mend it
    assert "copy.max.segments.per.run" in str(error)


def test_expiry_takes_the_windows_end_as_now(airflow: AirflowHome, site: TieredSite, spark: SparkInProcess) -> None:
    site.write_logs({"orders-0": 5})
    site.configure({"orders": {**TIERED, "remote.deletion.allowed": True, "retention.ms": HOUR_MS}})
    airflow.run("copy_segments")
    window = FIRST + timedelta(hours=2)
    [run] = airflow.backfill("expire_remote_segments", window, window)
    assert run.state == "success"
    # The window ends three hours after the first records: those of its third hour are just not older than one.
    assert site.finished("orders-0") == [20, 30, 40]
    [again] = airflow.backfill("expire_remote_segments", window, window)
    assert again.state == "success"
    assert site.finished("orders-0") == [20, 30, 40]
    assert airflow.run("expire_remote_segments").state == "success"
    assert site.finished("orders-0") == []
