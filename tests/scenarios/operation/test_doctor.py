"""Run doctor repeatedly while one fault after the other appears, on each kind of store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.s3_proxy import refusing_proxy
from support.command_line import mentions
from support.object_stores import S3Endpoint, localbucket_server
from support.remote_logs import RemoteLogFiles, a_remote_log, assert_clean, copy, unsynced
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager

SECONDS = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Endpoint]:
    with localbucket_server(tmp_path / "buckets") as endpoint:
        yield endpoint


def site(root: Path, endpoint: S3Endpoint) -> RemoteLogFiles:
    return a_remote_log(
        root,
        rsm_config_url=f"s3://{endpoint.bucket}/remote",
        rsm_config_endpoint=endpoint.url,
        rsm_config_allow_http=True,
        rsm_config_region=endpoint.region,
    )


def doctor(files: RemoteLogFiles, endpoint: S3Endpoint) -> tuple[int, list[dict[str, Any]]]:
    """Run the command in a process of its own; return its exit code, and what is wrong."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(files.root),
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
    }
    command = [sys.executable, "-m", "tiered_storage.cli.main", "doctor", "--json", "--config", str(files.config)]
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    rows = json.loads(done.stdout)["rows"]
    return done.returncode, [row for row in rows if row["verdict"] == "wrong"]


def objects(buckets: Path) -> set[str]:
    return {str(path.relative_to(buckets)) for path in buckets.rglob("*") if path.is_file()}


def test_doctor_finds_each_fault_as_it_appears(tmp_path: Path, server: S3Endpoint) -> None:
    files = site(tmp_path / "site", server)
    settings = files.settings()
    secrets = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}

    assert doctor(files, server) == (0, [])
    assert objects(tmp_path / "buckets") == set()
    with (
        unsynced(),
        RemoteLogManager.open(settings, wall_clock, store_options(settings, secrets), create=True) as remote_log,
    ):
        assert copy(remote_log).is_whole
    copied = objects(tmp_path / "buckets")
    assert doctor(files, server) == (0, [])

    with DirectoryLock.acquire(files.log_directory):
        code, [wrong] = doctor(files, server)
    assert (code, wrong["check"]) == (1, "log.dirs")
    assert "is in use" in wrong["message"]

    with refusing_proxy(server, "doctor-") as refusing:
        files.properties["rsm.config.endpoint"] = refusing.url
        code, [wrong] = doctor(files, server)
    assert (code, wrong["check"]) == (1, "store")
    assert mentions(wrong["message"], "refused", "credentials", "rights")
    files.properties["rsm.config.endpoint"] = server.url

    database = files.root / "state" / "remote_log_metadata.db"
    database.rename(tmp_path / "put away")
    code, [wrong] = doctor(files, server)
    assert (code, wrong["check"]) == (1, "pair")
    shutil.move(tmp_path / "put away", database)

    assert doctor(files, server) == (0, [])
    assert objects(tmp_path / "buckets") == copied
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, secrets), create=True) as remote_log:
        assert_clean(remote_log)
