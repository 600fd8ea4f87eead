"""A site whose Airflow workers are several hosts: they share a database and a bucket, and no state directory."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scenarios.copy.copy_steps import run_step
from servers.postgres import PASSWORD, postgres_url, the_server
from support.object_stores import localbucket_server
from support.remote_logs import ENABLED, RemoteLogFiles, a_remote_log


def test_each_step_of_a_copy_run_works_on_another_host(tmp_path: Path) -> None:
    """Each host is gone after its step; the next one has only the database, the bucket and the local logs."""
    logs = a_remote_log(tmp_path / "broker", {("orders", 0): 3, ("views", 0): 2}).log_directory
    database = the_server().url(postgres_url(tmp_path).rpartition("/")[2], password=None)

    with localbucket_server(tmp_path / "buckets") as endpoint:
        environment = {
            "PGPASSWORD": PASSWORD,
            "AWS_ACCESS_KEY_ID": endpoint.access_key,
            "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        }

        def on_a_host_of_its_own(name: str, step: str, *arguments: object) -> str:
            host = tmp_path / name
            host.mkdir()
            shared = {
                "log.dirs": [str(logs)],
                "rlmm.config.url": database,
                "rsm.config.url": f"s3://{endpoint.bucket}/remote",
                "work.url": f"s3://{endpoint.bucket}/work",
                "rsm.config.endpoint": endpoint.url,
                "rsm.config.region": endpoint.region,
                "rsm.config.allow.http": True,
                "topics": {"orders": dict(ENABLED), "views": dict(ENABLED)},
            }
            config = RemoteLogFiles(host, properties=shared).config
            printed = run_step(step, config, *arguments, environment=environment)
            shutil.rmtree(host)
            return printed

        on_a_host_of_its_own("planner", "plan")
        batches = json.loads(on_a_host_of_its_own("copier", "copy"))
        assert [batch["name"] for batch in batches] == ["orders-0", "views-0"]
        with ThreadPoolExecutor() as hosts:
            committing = [
                hosts.submit(on_a_host_of_its_own, f"committer-{number}", "commit", batch["path"])
                for number, batch in enumerate(batches)
            ]
        assert [each.result() for each in committing] == ["", ""]
        for partition in ("orders-0", "views-0"):
            for segment in sorted((logs / partition).glob("*.log"))[:-1]:
                segment.unlink()
        found = json.loads(on_a_host_of_its_own("reader", "read"))

    assert found == {"orders-0": [0, 10, 20], "views-0": [0, 10]}
