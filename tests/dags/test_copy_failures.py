"""copy_segments where Spark fails: what is kept, what is tried again and under which ids, and that no secret leaks."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite, partition
from tiered_storage.errors import LogDirectoryLockedError, MetadataUnavailableError
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome, CopyPlan
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.model import Finding, PartitionState, SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

SECRET = "wJalrXUtnFEMI/K7MDENG"
SPARK_SUBMIT = """\
#!{python}
# Writes down how it was called and does the job's groups, unless it is to fail at its first calls.
import json, os, sys
from pathlib import Path

calls = Path({calls!r})
number = len(list(calls.iterdir()))
(calls / str(number)).write_text(json.dumps({{"arguments": sys.argv, "environment": dict(os.environ)}}))
if number < int(os.environ.get("TEST_SPARK_SUBMIT_FAILURES", "0")):
    sys.exit(3)
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess, described_job

work_url, _, folder, _, store = sys.argv[-5:]
access = JobAccess.parse(work_url, folder, store, os.environ[JOB_SECRETS])
for group in range(described_job(access).groups):
    run_copy_groups(access, [group])
"""


class SparkSubmit:
    """A program of that name before all others on the PATH."""

    def __init__(self, directory: Path) -> None:
        self.calls_directory = directory / "calls"
        self.calls_directory.mkdir(parents=True)
        program = directory / "spark-submit"
        program.write_text(SPARK_SUBMIT.format(python=sys.executable, calls=str(self.calls_directory)))
        program.chmod(0o755)

    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return the arguments and the environment of every call."""
        read = [json.loads(path.read_text()) for path in sorted(self.calls_directory.iterdir())]
        return [(call["arguments"], call["environment"]) for call in read]


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkSubmit:
    directory = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[*]"}))
    return SparkSubmit(directory)


def test_a_failed_spark_submit_is_tried_again_under_new_ids_and_a_higher_fencing_number(
    airflow: AirflowHome, site: TieredSite, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SPARK_SUBMIT_FAILURES", "1")
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    run = airflow.run("copy_segments")
    assert run.state == "success"
    [error] = run.errors["copy"]
    assert "Error code is: 3" in str(error)
    jobs = [arguments[-3] for arguments, _ in spark_submit.calls()]
    assert [job.rpartition("/")[2] for job in jobs] == ["1", "2"]
    dead = site.segments("orders-0", SegmentState.DELETE_SEGMENT_STARTED)
    alive = site.segments("orders-0", SegmentState.COPY_SEGMENT_FINISHED)
    assert [segment.start_offset for segment in dead] == [0, 10]
    assert [segment.start_offset for segment in alive] == [0, 10]
    assert {segment.segment_id for segment in dead}.isdisjoint(segment.segment_id for segment in alive)
    assert max(segment.fencing_number for segment in dead) < min(segment.fencing_number for segment in alive)
    assert len(site.segments("orders-0")) == 4


def test_results_of_a_dying_spark_job_are_committed_and_the_next_run_copies_the_rest(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED}, commit_batch_partitions=1)
    spark.deaths.append(3)
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert run.tasks == {
        "plan": "success",
        "copy": "success",
        "commit_metadata[orders-0]": "success",
        "commit_metadata[orders-1]": "failed",
        "commit_metadata[payments-0]": "failed",
        "announce": "success",
        "all_committed": "upstream_failed",
    }
    assert "Spark failed" in run.log
    for name in ("orders-1", "payments-0"):
        [error] = run.errors[f"commit_metadata[{name}]"]  # once: no second try could find a result
        assert mentions(str(error), f"{name}: ", "no result", "worker")
    assert [site.finished(name) for name in ("orders-0", "orders-1", "payments-0")] == [[0, 10], [0], []]
    assert airflow.announced_by(run) == ["orders-0", "orders-1"]

    following = airflow.run("copy_segments")
    assert following.state == "success"
    assert [site.finished(name) for name in ("orders-0", "orders-1", "payments-0")] == [[0, 10], [0, 10], [0]]
    assert airflow.announced_by(following) == ["orders-1", "payments-0"]
    assert len(site.segments("orders-1", SegmentState.DELETE_SEGMENT_STARTED)) == 1


def test_a_commit_is_tried_again_while_the_local_log_cannot_be_looked_at(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1})
    site.configure({"orders": TIERED})
    look, refusals = LogDirectorySource.partition, iter([True])

    def look_later(source: LogDirectorySource, partition: TopicIdPartition) -> PartitionLog | None:
        if next(refusals, False):
            raise LogDirectoryLockedError("a broker has it")
        return look(source, partition)

    monkeypatch.setattr(LogDirectorySource, "partition", look_later)
    run = airflow.run("copy_segments")
    assert run.state == "success"
    [error] = run.errors["commit_metadata[orders-0 to orders-1 (2 partitions)]"]
    assert mentions(str(error), "1 segments committed", "orders-0", "a broker has it")
    assert [site.finished(name) for name in ("orders-0", "orders-1")] == [[0, 10], [0]]
    assert airflow.announced_by(run) == ["orders-0", "orders-1"]


def test_a_spark_job_that_never_leaves_a_result_fails_the_copy_and_its_segments_never_become_visible(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 1})
    site.configure({"orders": TIERED})
    spark.deaths.extend([0, 0, 0, 0])
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert run.tasks == {
        "plan": "success",
        "copy": "failed",
        "commit_metadata": "upstream_failed",
        "announce": "skipped",
        "all_committed": "upstream_failed",
    }
    assert [job.folder.rpartition("/")[2] for job in spark.submitted] == ["1", "2", "3", "4"]
    assert airflow.events_of(run) == []
    # Another run may only take over once the lease has run out; until then the last try could still be at work.
    held = airflow.run("copy_segments")
    assert held.state == "success"
    assert f"copy_segments/{run.run_id} works on it" in held.log
    with site.open() as remote_log:
        for segment in site.segments("orders-0", SegmentState.COPY_SEGMENT_STARTED):
            lease = remote_log.context.leases.acquire(segment.topic_id_partition, f"copy_segments/{run.run_id}", 60_000)
            remote_log.context.leases.release(lease)
    assert airflow.run("copy_segments").state == "success"
    assert site.finished("orders-0") == [0]
    assert len(site.segments("orders-0", SegmentState.DELETE_SEGMENT_STARTED)) == 4
    assert len(site.segments("orders-0")) == 5


@pytest.mark.parametrize("master", ["local[*]", "yarn"])
def test_the_stores_secret_reaches_spark_by_environment_and_shows_nowhere(
    airflow: AirflowHome,
    site: TieredSite,
    spark_submit: SparkSubmit,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
) -> None:
    connection = {
        "conn_type": "aws",
        "login": "AKIAIOSFODNN7",
        "password": SECRET,
        "extra": {"region_name": "eu-north-1", "aws_session_token": f"token-{SECRET}"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    site.write_logs({"orders-0": 1})
    site.configure({"orders": TIERED})
    run = airflow.run("copy_segments")
    assert run.state == "success"
    [(arguments, environment)] = spark_submit.calls()
    given = json.loads(environment[JOB_SECRETS])
    secrets = [SECRET, given.pop("signing_key")]
    assert len(set(secrets)) == 2
    assert [secret for secret in secrets if secret in " ".join(arguments)] == []
    expected = {
        "access_key_id": "AKIAIOSFODNN7",
        "secret_access_key": SECRET,
        "session_token": f"token-{SECRET}",
    }
    assert expected.items() <= given["store"].items()
    assert json.loads(arguments[-1])["reached"]["region"] == "eu-north-1"
    assert [name for name, value in environment.items() if SECRET in value and "AIRFLOW" not in name] == [JOB_SECRETS]
    assert JOB_SECRETS not in os.environ
    assert [secret for secret in secrets if secret in run.log + run.messages + airflow.rendered(run)] == []
    written = [path for path in site.root.rglob("*") if path.is_file() and "calls" not in path.parts]
    assert len(written) > 10
    assert [path for path in written if any(secret.encode() in path.read_bytes() for secret in secrets)] == []


def test_finished_copies_are_committed_at_the_deadline_and_the_next_run_continues(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

    site.write_logs({"orders-0": 3})
    site.configure({"orders": TIERED})
    spark.deaths.append(2)
    in_time = SparkSubmitOperator.execute

    def out_of_time(operator: SparkSubmitOperator, context: object) -> None:
        try:
            in_time(operator, context)  # type: ignore[arg-type]  # as it was called
        except AirflowException as error:
            raise AirflowTaskTimeout("Timeout, PID: 1") from error

    killed: list[str] = []
    monkeypatch.setattr(SparkSubmitOperator, "execute", out_of_time)
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda operator: killed.append(operator.task_id))
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert killed == ["copy"]
    assert site.finished("orders-0") == [0, 10]
    assert airflow.run("copy_segments").state == "success"
    assert site.finished("orders-0") == [0, 10, 20]


@pytest.mark.parametrize("finished", [2, 0])
def test_a_job_in_which_no_byte_moves_is_ended_and_what_it_had_finished_is_committed(
    airflow: AirflowHome,
    site: TieredSite,
    spark: SparkInProcess,
    monkeypatch: pytest.MonkeyPatch,
    finished: int,
) -> None:
    from tiered_storage.remote_log.jobs import progress as job_progress

    # The setting takes ten seconds at least.
    watch = partial(job_progress.JobWatch, check_seconds=0.05)
    monkeypatch.setattr(
        job_progress, "JobWatch", lambda *given, **named: watch(*given, **{**named, "stuck_after_ms": 1000})
    )
    site.write_logs({"orders-0": 2, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED}, commit_batch_partitions=1)
    spark.deaths.append(finished)
    spark.hangs = True
    run = airflow.run("copy_segments")

    assert spark.killed.is_set()
    if finished:
        assert run.state == "failed"
        assert run.tasks["commit_metadata[orders-0]"] == "success"
        [error] = run.errors["commit_metadata[payments-0]"]
        assert mentions(str(error), "payments-0", "CopyStuckError", "1 s", "copy.stuck.after.ms")
        assert site.finished("orders-0") == [0, 10]
        return
    # Nothing to commit: the next try takes it up, under new ids.
    assert run.state == "success"
    [error] = run.errors["copy"]
    assert mentions(str(error), "1 s", "copy.stuck.after.ms", "0 of 3 segments")
    assert (site.finished("orders-0"), site.finished("payments-0")) == ([0, 10], [0])
    assert len(site.segments("orders-0", SegmentState.DELETE_SEGMENT_STARTED)) == 2


def test_a_commit_that_meets_a_locked_metadata_store_is_tried_again_and_commits_all(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_logs({"orders-0": 2, "payments-0": 2})
    site.configure({"orders": TIERED, "payments": TIERED}, metadata_busy_timeout_ms=100)
    commit, locked = RemoteLogManager.commit_copy, [True]

    def commit_while_locked(remote_log: RemoteLogManager, outcomes: Iterable[CopyOutcome]) -> CommitReport:
        if not locked:
            return commit(remote_log, outcomes)
        locked.clear()
        with closing(sqlite3.connect(site.state / "remote_log_metadata.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            return commit(remote_log, outcomes)

    monkeypatch.setattr(RemoteLogManager, "commit_copy", commit_while_locked)
    run = airflow.run("copy_segments")

    assert run.state == "success"
    [errors] = run.errors.values()
    [error] = errors
    assert isinstance(error, MetadataUnavailableError)
    assert str(site.state / "remote_log_metadata.db") in str(error)
    assert (site.finished("orders-0"), site.finished("payments-0")) == ([0, 10], [0, 10])
    assert len(spark.submitted) == 1


def test_a_partition_of_older_metadata_fails_alone_and_all_others_are_copied(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2})
    site.configure({"orders": TIERED})
    with site.open() as remote_log:
        remote_log.context.bind_store()
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None
        manifests.write(PartitionManifest(partition("orders-0"), 7, PartitionState(0), 7))

    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert (site.finished("orders-0"), site.finished("orders-1")) == ([], [0, 10])
    # That the store knows of a later lease shows when the store is to know of the first segment: at the commit.
    commit = "commit_metadata[orders-0 to orders-1 (2 partitions)]"
    [error] = run.errors[commit]  # once: no second try could mend it
    assert mentions(str(error), "2 segments", "orders-0", "lease 7")
    assert "older than the store" in str(error)
    assert "rebuild-metadata" in str(error)
    assert run.tasks == {
        "plan": "success",
        "copy": "success",
        commit: "failed",
        "announce": "success",
        "all_committed": "upstream_failed",
    }
    assert mentions(run.log, "committed segments: 2,", "committed bytes: 2,402,", "partitions: 1")


def test_partitions_that_could_not_be_begun_are_named_at_the_end_and_all_others_are_committed_and_announced(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1})
    site.configure({"orders": TIERED})
    begin_copy = RemoteLogManager.begin_copy

    def begin_one(remote_log: RemoteLogManager, plan: CopyPlan, owner: str) -> BegunCopy:
        refused = Finding("orders-1", "ForkedLogError: two logs were written on")
        return replace(begin_copy(remote_log, plan.without([refused]), owner), failed=(refused,))

    monkeypatch.setattr(RemoteLogManager, "begin_copy", begin_one)
    run = airflow.run("copy_segments")

    assert run.state == "failed"
    assert run.tasks == {
        "plan": "success",
        "copy": "success",
        "commit_metadata[orders-0]": "success",
        "announce": "success",
        "all_committed": "failed",
    }
    [error] = run.errors["all_committed"]  # once: no second try could begin it
    assert mentions(str(error), "1 partitions", "orders-1: ForkedLogError")
    assert (site.finished("orders-0"), site.finished("orders-1")) == ([0, 10], [])
    assert airflow.announced_by(run) == ["orders-0"]
    assert "failed partitions: orders-1" in run.log
