"""spark-submit of the copy job where the library is installed nowhere: it can only come from the zip."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest
from hdfs_native import Client

from integration.mount_namespaces import python_elsewhere
from integration.spark_submit import SparkSubmit
from integration.stored_segments import ensure_as_stored
from servers.aws_roles import Account, Role, role_arn, running_account
from servers.azurite import ACCOUNT, CONTAINER, KEY, azurite_server
from servers.hdfs import RealHdfs, write_hadoop_settings
from servers.real_kafka import RealKafka
from servers.s3_proxy import Asked, Refusal
from support.command_line import mentions, run
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.object_stores import OWN_STORE, S3Endpoint, localbucket_server
from support.records import varied_records
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.jobs.library_archive import build_library_archive
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook


def test_workers_take_the_library_from_the_zip_alone_unpack_it_once_and_compile_it_once(
    spark_submit: SparkSubmit, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    site = TieredSite(tmp_path / "site")
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    first, peak = spark_submit(site, "runs/first/1")
    [unpacked] = (tmp_path / "tmp").glob(f"remote-log-{os.getuid()}/*")
    assert unpacked.name == build_library_archive(tmp_path).stem
    assert {outcome.library for outcome in first} == {str(unpacked / "tiered_storage")}
    assert site.finished("orders-0") == [0, 10]
    compiled = {path: path.stat().st_mtime_ns for path in unpacked.rglob("kernels-*.o")}
    assert compiled
    assert peak > 0
    record_property("peak_resident_mib_of_a_worker", peak >> 20)

    site.append_segment("orders-0")
    second, _ = spark_submit(site, "runs/second/1")
    assert [outcome.task.metadata.start_offset for outcome in second] == [20]
    assert {outcome.library for outcome in second} == {str(unpacked / "tiered_storage")}
    assert list((tmp_path / "tmp").glob(f"remote-log-{os.getuid()}/*")) == [unpacked]
    assert {path: path.stat().st_mtime_ns for path in unpacked.rglob("kernels-*.o")} == compiled
    record_property("seconds_of_first_and_later_segments", [first[0].seconds, second[0].seconds])


@pytest.mark.nightly
def test_workers_take_no_library_from_a_folder_that_others_can_write_to_and_leave_none(
    spark_submit: SparkSubmit, tmp_path: Path
) -> None:
    """By day tests/unit/spark_jobs/test_use_library.py tries the stub by itself on such folders."""
    theirs = tmp_path / "tmp" / f"remote-log-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    site = TieredSite(tmp_path / "site")
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})

    outcomes, _ = spark_submit(site, "runs/first/1")

    assert site.finished("orders-0") == [0, 10]
    assert list(theirs.iterdir()) == []
    libraries = {Path(outcome.library) for outcome in outcomes}
    assert libraries
    assert [path for path in libraries if theirs in path.parents or path.exists()] == []


def test_workers_load_a_custom_store_and_everything_works_on_it(spark_submit: SparkSubmit, tmp_path: Path) -> None:
    """The example of docs/stores.md: the workers find its class by the class path alone."""
    site = TieredSite(tmp_path / "site")
    site.write_logs({"orders-0": 3})
    allowed = {"remote.deletion.allowed": True, "retention.ms": -1}
    site.configure(
        {"orders": {**TIERED, **allowed}},
        remote_log_storage_manager_class_name="own_store.SqliteStorage",
        remote_log_storage_manager_class_path=str(OWN_STORE.parent),
        rsm_config_url=f"sqlite://{tmp_path}/objects.db",
        rsm_config_timeout_ms=20_000,
    )

    def tiered_storage(*arguments: object) -> str:
        result = run(*arguments, "--config", site.config)
        assert result.exit_code == 0, (arguments, result.out, result.err)
        return result.out

    spark_submit(site, "runs/first/1")
    assert site.finished("orders-0") == [0, 10, 20]
    read = tiered_storage("read", "orders", 0, "--offset", 7, "--max-records", 5, "--json")
    assert [json.loads(line)["offset"] for line in read.splitlines()] == [7, 8, 9, 10, 11]
    tiered_storage("delete-records", "orders", 0, "--before", 10)
    tiered_storage("expire")
    assert site.finished("orders-0") == [10, 20]
    assert "0 anomalies" in tiered_storage("audit", "--deep")
    with closing(sqlite3.connect(tmp_path / "objects.db")) as objects:
        names = [name for (name,) in objects.execute("SELECT name FROM objects WHERE name LIKE '%.commit'")]
    assert len(names) == 2
    assert not (site.state / "remote").exists()
    output = tiered_storage("doctor")
    assert mentions(output, "own_store.SqliteStorage ", "your own class")


@pytest.mark.nightly
def test_workers_reach_hdfs_by_their_environment(
    spark_submit: SparkSubmit, real_hdfs: RealHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name service is known and the user has rights only by what the environment names.

    By day tests/integration/storage/test_hdfs.py opens a store so in its own process.
    """
    configuration = tmp_path / "hadoop"
    configuration.mkdir()
    addresses = {"dfs.ha.namenodes.lake": "nn0", "dfs.namenode.rpc-address.lake.nn0": real_hdfs.address}
    write_hadoop_settings(configuration / "hdfs-site.xml", addresses)
    environment = {"HADOOP_CONF_DIR": str(configuration), "HADOOP_USER_NAME": "tiering"}
    folder = folder_of(real_hdfs, "tiering")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    submit = replace(spark_submit, environment=spark_submit.environment | environment)
    assert owners_of_a_copy(submit, real_hdfs, folder, tmp_path) == {"tiering"}


def test_workers_reach_hdfs_by_an_airflow_connection(
    spark_submit: SparkSubmit, real_hdfs: RealHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = real_hdfs.address.partition(":")
    connection = {"conn_type": "hdfs", "host": host, "port": int(port), "login": "tiering"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    monkeypatch.setattr("support.tiered_site.store_options", RemoteStorageHook("lake").options)
    assert "AIRFLOW_CONN_LAKE" not in spark_submit.environment
    folder = folder_of(real_hdfs, "tiering")
    monkeypatch.setenv("HADOOP_USER_NAME", "of-the-machine")
    assert owners_of_a_copy(spark_submit, real_hdfs, folder, tmp_path) == {"tiering"}


def test_workers_reach_azure_by_an_airflow_connection(
    spark_submit: SparkSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with azurite_server(tmp_path / "azurite") as azure:
        connection = {"conn_type": "wasb", "login": ACCOUNT, "password": KEY, "host": azure.url}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        monkeypatch.setattr("support.tiered_site.store_options", RemoteStorageHook("lake").options)
        assert "AIRFLOW_CONN_LAKE" not in spark_submit.environment
        site = TieredSite(tmp_path / "site")
        site.write_logs({"orders-0": 2})
        places = {"rsm_config_url": f"az://{CONTAINER}/remote", "work_url": f"az://{CONTAINER}/work"}
        site.configure({"orders": TIERED}, **places, rsm_config_allow_http=True)

        spark_submit(site, "runs/first/1")

        assert site.finished("orders-0") == [0, 10]
        assert not (site.state / "remote").exists()


@pytest.mark.nightly
def test_workers_that_do_not_see_the_leaders_files_say_so_before_anything_is_copied(
    spark_submit: SparkSubmit, real_kafka: RealKafka, tmp_path: Path
) -> None:
    topic = "out-of-the-workers-sight"
    real_kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    real_kafka.client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    site = LiveSite(real_kafka, tmp_path, (topic,), {"broker.log.dirs": f"1={real_kafka.log_dir}"})
    empty, isolated = tmp_path / "empty", Path(spark_submit.environment["PYSPARK_PYTHON"])
    empty.mkdir()
    # Spark's driver sees the files, as the plan did, and its workers do not.
    python = python_elsewhere(tmp_path / "python-elsewhere", empty, real_kafka.log_dir, isolated)
    submit = replace(spark_submit, environment={**spark_submit.environment, "PYSPARK_PYTHON": str(python)})
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "test")
        job = remote_log.write_copy_job("runs/unseen/1", begun)
        said, _ = submit.run("copy_segments.py", remote_log.context.access(job.files))
        outcomes = list(job.outcomes())
        report = remote_log.commit_copy(outcomes)

    assert "copied 0 segments" in said
    assert len(outcomes) > 1
    assert report.committed == ()
    for named in ("broker 1", str(real_kafka.log_dir), "broker.log.dirs", "run the copy on a host that sees them"):
        assert named in report.failures[0].message
    assert [path for path in (tmp_path / "state" / "remote").rglob("*") if topic in str(path) and path.is_file()] == []
    assert len(site.copied()) == ensure_as_stored(site) > 1


@dataclass
class LapsingAccount(Account):
    """An account in which a session that sends a segment has expired before the segment's next object is sent."""

    lapsed: set[str] = field(default_factory=set)

    def look(self, asked: Asked) -> Refusal | None:
        refusal = super().look(asked)
        if refusal is None and asked.method == "PUT" and asked.path.partition("?")[0].endswith(".log"):
            key = asked.headers["x-amz-security-token"].removeprefix("the-token-of-")
            self.lapsed.add(key)
            time.sleep(max(0, self.sessions[key].expires - time.time()))
        return refusal


def test_workers_renew_the_session_of_a_role_that_expires_during_the_run(
    spark_submit: SparkSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses expired sessions, so the indexes and commit markers that are there were sent with later ones."""
    account = LapsingAccount({"writer": Role(S3Endpoint("").access_key)}, admitted="writer", seconds=2)
    with localbucket_server(tmp_path / "buckets") as s3, running_account(s3, account):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        site = TieredSite(tmp_path / "site")
        site.write_logs({"orders-0": 2})
        site.configure(
            {"orders": TIERED},
            rsm_config_url=f"s3://{s3.bucket}/remote",
            rsm_config_endpoint=account.s3.url,
            rsm_config_region=s3.region,
            rsm_config_allow_http=True,
            rsm_config_role_arn=[role_arn("writer")],
            rsm_config_sts_endpoint=account.sts_url,
        )
        spark_submit(site, "runs/first/1")
        assert site.finished("orders-0") == [0, 10]
    assert account.lapsed
    assert set(account.seen) - account.lapsed


def folder_of(hdfs: RealHdfs, user: str) -> str:
    """Make a folder in HDFS that is this user's alone."""
    folder = f"/{uuid4().hex}"
    Client(hdfs.url).mkdirs(folder, 0o700)
    Client(hdfs.url).set_owner(folder, user)
    return folder


def owners_of_a_copy(submit: SparkSubmit, hdfs: RealHdfs, folder: str, tmp_path: Path) -> set[str]:
    """Copy two segments to `folder` in the name service `lake`; return who owns the files there."""
    site = TieredSite(tmp_path / "site")
    site.write_logs({"orders-0": 2})
    url = f"hdfs://lake{folder}"
    site.configure({"orders": TIERED}, rsm_config_url=f"{url}/remote", work_url=f"{url}/work")

    submit(site, "runs/first/1")

    assert site.finished("orders-0") == [0, 10]
    files = [status for status in Client(hdfs.url).list_status(folder, recursive=True) if not status.isdir]
    assert len([status for status in files if status.path.endswith(".commit")]) == 2
    return {status.owner for status in files}
