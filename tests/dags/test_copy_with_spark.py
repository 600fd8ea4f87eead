"""copy_segments with a real Spark: one whose worker is killed, and one whose worker is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from crashes.crash_points import CrashPoint
from crashes.storages import ALREADY_DEAD, DYING_VICTIM, HALT, IGNORE_HANGUP
from dags.airflow_runs import AirflowHome
from support.airflow_home import PROJECT
from support.command_line import mentions
from support.remote_logs import assert_clean, is_kept_by_the_store
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.embedded.processes import is_running, wait_until

pytestmark = pytest.mark.usefixtures("real_spark")


def test_a_killed_worker_loses_only_what_it_had_not_finished_and_the_next_run_copies_that_under_new_ids(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DYING_VICTIM, "orders-1")
    monkeypatch.setenv(ALREADY_DEAD, str(site.root / "dead"))
    # Only a storage class of one's own has to be installed where Spark runs.
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests"))
    site.write_logs({"orders-0": 2, "orders-1": 2})
    site.configure(
        {"orders": TIERED},
        commit_batch_partitions=1,
        remote_log_storage_manager_class_name="crashes.storages.DyingStorage",
    )
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert (site.root / "dead").exists()
    assert "Python worker exited unexpectedly" in run.log
    assert run.tasks["commit_metadata[orders-0]"] == "success"
    assert run.tasks["commit_metadata[orders-1]"] == "failed"
    assert "its worker died" in run.messages
    assert site.finished("orders-0") == [0, 10]
    assert site.finished("orders-1") == []
    dead = {segment.segment_id for segment in site.segments("orders-1", SegmentState.DELETE_SEGMENT_STARTED)}
    assert len(dead) == 2

    following = airflow.run("copy_segments")
    assert following.state == "success"
    assert airflow.announced_by(following) == ["orders-1"]
    alive = site.segments("orders-1", SegmentState.COPY_SEGMENT_FINISHED)
    assert [segment.start_offset for segment in alive] == [0, 10]
    assert dead.isdisjoint(segment.segment_id for segment in alive)
    assert len(site.segments("orders-0")) == 2


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", [CrashPoint.IN_DATA, CrashPoint.AFTER_MARKER])
def test_a_stuck_worker_is_abandoned_and_its_later_results_are_ignored(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch, point: CrashPoint
) -> None:
    halt = site.root / "halt"
    halt.mkdir()
    (halt / IGNORE_HANGUP).touch()
    monkeypatch.setenv(HALT, str(halt))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests"))
    names = ("orders-0", "orders-1")
    site.write_logs(dict.fromkeys(names, 1))
    storage = {"remote_log_storage_manager_class_name": "crashes.storages.HaltingStorage"}
    site.configure({"orders": TIERED}, **storage)
    # The first job of a version compiles its kernels, which no byte moves by.
    assert airflow.run("copy_segments").state == "success"

    for name in names:
        site.append_segment(name)
        site.append_segment(name)
    # Spark's own start counts too, and a busy machine takes its time for that.
    site.configure({"orders": TIERED}, copy_stuck_after_ms=120_000, commit_batch_partitions=1, **storage)
    (halt / "at").write_text(point)
    # As where it works on another machine: what runs here ends with spark-submit.
    monkeypatch.setattr(psutil.Process, "children", out_of_reach(psutil.Process.children))
    run = airflow.run("copy_segments")
    worker = psutil.Process(int((halt / "worker").read_text()))
    assert worker.status() == psutil.STATUS_STOPPED
    assert mentions(run.messages, "120 s", "(copy.stuck.after.ms)")
    assert "the job was ended" in run.messages

    # Nobody holds a lease any more: what its second try left, if it had one, the next run takes.
    following = airflow.run("copy_segments")
    assert following.state == "success", following.messages
    before = {name: site.segments(name) for name in names}
    assert {name: site.finished(name) for name in names} == {name: [0, 10, 20] for name in names}

    objects = set(objects_of(site))
    (halt / "proceed").touch()
    assert wait_until(lambda: continued(worker), seconds=60)
    assert {name: site.segments(name) for name in names} == before
    assert set(objects_of(site)) - objects, "it continued to write"
    with site.open() as remote_log:
        assert_clean(remote_log, expected=None)

    with site.open_after(remote_log.context.settings.remote_log_orphan_grace_ms + 60_000) as remote_log:
        assert not remote_log.deletions.delete_marked("expire").failures
        assert_clean(remote_log, expected=None)
    assert len(objects_of(site)) == 3 * 6


def out_of_reach(children: Callable[..., list[psutil.Process]]) -> Callable[..., list[psutil.Process]]:
    """Return what finds a process's children, but none of Spark's workers in Python."""

    def found(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [one for one in children(process, recursive) if "pyspark" not in " ".join(one.cmdline())]

    return found


def objects_of(site: TieredSite) -> list[Path]:
    found = (site.state / "remote").rglob("*")
    return [path for path in found if path.is_file() and path.suffix != ".json" and not is_kept_by_the_store(path)]


def continued(worker: psutil.Process) -> bool:
    """Let a stopped worker continue; return whether it ended."""
    if not is_running(worker):
        return True
    worker.send_signal(signal.SIGCONT)
    return False
