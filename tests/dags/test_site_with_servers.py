"""The DAGs on servers alone: metadata in PostgreSQL, encrypted segments in an S3 bucket, copies by a real Spark.

Passwords, secrets and keys come from Airflow connections and from a key ring. Nothing that a run writes or shows has
any of them.
"""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq
import pytest

from dags.airflow_runs import AirflowHome
from servers.postgres import PASSWORD, USER, postgres_url, the_server
from support.airflow_home import HOME
from support.key_rings import ring_of_three
from support.object_stores import S3Endpoint, localbucket_server
from support.remote_logs import assert_clean
from support.shown_secrets import holds, keys_as_text, process_list
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, TIERED, TieredSite
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.jobs.work_area import from_lines
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.storage.transforms.encoding import MAGIC
from tiered_storage_airflow.hooks.remote_log import RemoteLogHook

pytestmark = pytest.mark.usefixtures("real_spark")
SEGMENT = 1201
"""The size of a closed segment in bytes."""
ENCRYPTED = {
    **TIERED,
    "local.deletion.allowed": True,
    "local.retention.bytes": 0,
    "remote.deletion.allowed": True,
    "retention.bytes": 3 * SEGMENT,
    "retention.ms": -1,
    "remote.encryption.enabled": True,
    "remote.compression.enabled": True,
}


def connect(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Define Airflow's connections to the bucket and to PostgreSQL; return the secrets in them, as text may have it."""
    storage = {
        "conn_type": "aws",
        "login": endpoint.access_key,
        "password": endpoint.secret_key,
        "extra": {"endpoint_url": endpoint.url, "region_name": endpoint.region},
    }
    metadata = {"conn_type": "postgres", "login": USER, "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT", json.dumps(storage))
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_LOG_METADATA_DEFAULT", json.dumps(metadata))
    forms = {PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), quote_plus(PASSWORD), endpoint.secret_key}
    return [form.encode() for form in sorted(forms)]


def database_url(site: TieredSite) -> str:
    """Make a database for `site`; return its URL without user and password."""
    with_login = postgres_url(site.root)
    return f"postgresql://127.0.0.1:{the_server().port}/{with_login.rpartition('/')[2]}"


def finished_offsets(remote_log: RemoteLogManager) -> list[int]:
    [partition] = remote_log.context.segments.list_partitions()
    listed = remote_log.context.segments.list_remote_log_segments(partition)
    return [each.start_offset for each in listed if each.state == SegmentState.COPY_SEGMENT_FINISHED]


def test_copy_retention_export_expiry_and_audit_work_on_postgresql_and_an_encrypted_bucket_and_show_no_secret(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_list() as shown, localbucket_server(site.root / "buckets") as endpoint:
        secrets = connect(endpoint, monkeypatch)
        root = f"s3://{endpoint.bucket}/over/http"
        site.write_logs({"orders-0": 3})
        site.configure(
            {"orders": ENCRYPTED},
            rlmm_config_url=database_url(site),
            rsm_config_url=f"{root}/remote",
            work_url=f"{root}/work",
            rsm_config_allow_http=True,
            rsm_config_encryption_key_ring_file=str(ring_of_three(site.root / "keys")),
            rsm_config_encryption_key_pair_id="third",
        )
        interval = {"from_time": str(FIRST_TIMESTAMP), "to_time": str(FIRST_TIMESTAMP + 3 * HOUR_MS)}
        runs = [
            airflow.run("copy_segments"),
            airflow.run("enforce_local_retention"),
            airflow.run("export_topic", {"topic": "orders", **interval, "max_disorder_minutes": 0}),
            airflow.run("expire_remote_segments"),
            airflow.run("audit_remote_log", {"deep": True}),
        ]
        assert [run.state for run in runs] == ["success"] * len(runs), [run.messages for run in runs]
        with RemoteLogHook().get_conn() as remote_log:
            assert finished_offsets(remote_log) == [10, 20]
            assert_clean(remote_log, expected=None)

    assert site.local("orders-0") == [30]
    assert pq.read_table([*(site.state / "exports").rglob("*.parquet")])["offset"].to_pylist() == list(range(30))
    # No metadata went anywhere but into PostgreSQL.
    assert list(site.root.rglob("*.db")) == []
    bucket = site.root / "buckets" / endpoint.bucket
    assert len(list(bucket.rglob("remote/tests/orders-*/0/*.key"))) == 2
    data = [path.read_bytes() for path in bucket.rglob("remote/tests/orders-*/0/*.log")]
    assert [content[:4] for content in data] == [MAGIC] * 2
    [job] = bucket.rglob("work/runs/copy_segments*/copy/1/job.json")
    [results] = bucket.rglob("work/runs/copy_segments*/copy/1/result-00000.jsonl")
    assert "://" not in job.read_text()
    outcomes = from_lines(b"\n".join(results.read_bytes().splitlines()[:-1]), CopyOutcome, str(results))
    assert [outcome.record_count for outcome in outcomes] == [10, 10, 10]
    # Though the library is installed here, workers take it from the job's zip.
    assert all("/remote-log-" in outcome.library for outcome in outcomes)

    secrets += keys_as_text(site.root / "keys")
    assert len(secrets) > 40
    written = [path for home in (site.root, HOME) for path in home.rglob("*") if path.is_file()]
    assert HOME / "airflow.db" in written
    assert {path.parent.name for path in written if holds(path.read_bytes(), secrets)} == {"keys"}
    output = "".join(run.log + airflow.rendered(run) for run in runs)
    assert not holds(output.encode(), secrets)
    assert any(b"copy_segments.py" in arguments for arguments in shown)
    assert any(b"pyspark" in arguments for arguments in shown)
    assert not any(holds(arguments, secrets) for arguments in shown)
