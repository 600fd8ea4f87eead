"""copy_segments with a real Spark: one whose worker is killed, and one that reaches its store over HTTP."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from crashes.crash_points import CrashPoint
from crashes.storages import ALREADY_DEAD, DYING_VICTIM, HALT, IGNORE_HANGUP
from dags.airflow_runs import AirflowHome
from support.airflow_home import PROJECT
from support.key_rings import ring_of_three
from support.object_stores import localbucket_server
from support.remote_logs import assert_clean, is_kept_by_the_store
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, TIERED, TieredSite
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.jobs.messages import from_lines
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.storage.transforms.chunk_frame import MAGIC
from tiered_storage_airflow.embedded.java import java_home
from tiered_storage_airflow.embedded.processes import is_running, wait_until


@pytest.fixture(autouse=True)
def real_spark(state_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Spark connection lead to this machine's Spark."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(java_home(state_directory, os.environ)))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    connection = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


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
    assert airflow.events_of(following)[0]["partitions"] == ["orders-1"]
    alive = site.segments("orders-1", SegmentState.COPY_SEGMENT_FINISHED)
    assert [segment.start_offset for segment in alive] == [0, 10]
    assert dead.isdisjoint(segment.segment_id for segment in alive)
    assert len(site.segments("orders-0")) == 2


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", [CrashPoint.IN_DATA, CrashPoint.AFTER_MARKER])
def test_a_worker_that_stands_still_is_given_up_and_nothing_counts_of_what_it_writes_when_it_continues(
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
    assert "no byte moved for 120 s (copy.stuck.after.ms), at" in run.messages
    assert "the job was ended" in run.messages

    # Nobody holds a lease any more: what its second try left, if it had one, the next run takes.
    following = airflow.run("copy_segments")
    assert following.state == "success", following.messages
    before = {name: site.segments(name) for name in names}
    assert {name: site.finished(name) for name in names} == {name: [0, 10, 20] for name in names}

    objects = set(objects_of(site))
    (halt / "go-on").touch()
    assert wait_until(lambda: continued(worker), seconds=60)
    assert {name: site.segments(name) for name in names} == before
    assert set(objects_of(site)) - objects, "it went on to write"
    with site.open() as remote_log:
        assert_clean(remote_log, expected=None)

    with site.open_after(remote_log.settings.remote_log_orphan_grace_ms + 60_000) as remote_log:
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
    """Let a worker that stands still go on; return whether it ended."""
    if not is_running(worker):
        return True
    worker.send_signal(signal.SIGCONT)
    return False


@contextmanager
def process_list() -> Iterator[set[bytes]]:
    """Collect the arguments of every process of this machine while the `with` block runs."""
    shown: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    shown.add(path.read_bytes())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        ended.set()
        thread.join()


def keys_as_text(folder: Path) -> list[bytes]:
    """Return what a file or an argument would have of the keys in `folder`, in any of the usual forms."""
    raw = (folder / "third.key").read_bytes()
    found = [raw, base64.b64encode(raw).rstrip(b"="), raw.hex().encode()]
    for path in (folder / "first.pem", folder / "second.pem"):
        found += [line for line in path.read_bytes().splitlines() if len(line) == 64]
        found.append(base64.b64encode(path.read_bytes())[100:200])
    return found


def test_a_bucket_over_http_and_its_encrypted_topics_are_read_with_secrets_that_nothing_shows(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_list() as shown, localbucket_server(site.root / "buckets") as endpoint:
        connection = {
            "conn_type": "aws",
            "login": endpoint.access_key,
            "password": endpoint.secret_key,
            "extra": {"endpoint_url": endpoint.url, "region_name": endpoint.region},
        }
        monkeypatch.setenv("AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT", json.dumps(connection))
        root = f"s3://{endpoint.bucket}/over/http"
        site.write_logs({"orders-0": 2})
        site.configure(
            {
                "orders": {
                    **TIERED,
                    "local.deletion.allowed": True,
                    "local.retention.bytes": 0,
                    "remote.encryption.enabled": True,
                    "remote.compression.enabled": True,
                }
            },
            rsm_config_url=f"{root}/remote",
            work_url=f"{root}/work",
            rsm_config_allow_http=True,
            rsm_config_encryption_key_ring_file=str(ring_of_three(site.root / "keys")),
            rsm_config_encryption_key_pair_id="third",
        )
        run = airflow.run("copy_segments")
        assert run.state == "success", run.messages
        assert airflow.run("enforce_local_retention").state == "success"
        assert airflow.run("audit_remote_log", {"deep": True}).state == "success"
        interval = {"from_time": str(FIRST_TIMESTAMP), "to_time": str(FIRST_TIMESTAMP + 2 * HOUR_MS)}
        export = airflow.run("export_topic", {"topic": "orders", **interval, "max_disorder_minutes": 0})
        assert export.state == "success", export.messages
    assert site.local("orders-0") == [20]
    assert pq.read_table([*(site.state / "exports").rglob("*.parquet")])["offset"].to_pylist() == list(range(20))
    bucket = site.root / "buckets" / endpoint.bucket
    assert len(list(bucket.rglob("remote/tests/orders-*/0/*.key"))) == 2
    data = [path.read_bytes() for path in bucket.rglob("remote/tests/orders-*/0/*.log")]
    assert [content[:4] for content in data] == [MAGIC] * 2
    [job] = bucket.rglob("work/runs/copy_segments*/1/job.json")
    [results] = bucket.rglob("work/runs/copy_segments*/1/result-00000.jsonl")
    assert "://" not in job.read_text()
    outcomes = from_lines(b"\n".join(results.read_bytes().splitlines()[:-1]), CopyOutcome, str(results))
    assert [outcome.record_count for outcome in outcomes] == [10, 10]
    # Though the library is installed here, workers take it from the job's zip.
    assert all("/remote-log-" in outcome.library for outcome in outcomes)
    secrets = [endpoint.secret_key.encode(), *keys_as_text(site.root / "keys")]
    assert len(secrets) > 40
    written = [path for path in site.root.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert [path for path in written if any(secret in path.read_bytes() for secret in secrets)] == []
    told = "".join(each.log + airflow.rendered(each) for each in (run, export)).encode()
    assert [secret for secret in secrets if secret in told] == []
    assert any(b"copy_segments.py" in arguments for arguments in shown)
    assert any(b"pyspark" in arguments for arguments in shown)
    assert [arguments for arguments in shown if any(secret in arguments for secret in secrets)] == []
