"""Which stores have a clock of their own, and what the kernel reports of the machine's clock."""

from __future__ import annotations

import os
import runpy
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.object_stores import OWN_STORE
from tiered_storage.clock import is_synchronised_by_ntp, machine_boot_time
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.retention.permission.clock_agreement import has_own_clock
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.retention.permission.clock_runs import HOUR


@pytest.fixture
def without_cloud_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What the machine of the tests has set does not count."""
    for name in os.environ:
        if name.upper().startswith(("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("url", "endpoint", "environ", "is_own"),
    [
        ("file:///tmp/store", None, {}, False),
        ("hdfs://namenode:8020/folder", None, {}, False),
        ("s3://bucket/prefix", "http://localhost:9000", {}, False),
        ("s3://bucket/prefix", "http://[::ffff:127.0.0.1]:9000", {}, False),
        ("s3://bucket/prefix", "http://0.0.0.0:9000", {}, False),
        ("s3://bucket/prefix", "http://minio:9000", {}, False),
        ("s3://bucket/prefix", "https://s3.eu-central-1.amazonaws.com", {}, False),
        ("s3://bucket/prefix", None, {"AWS_ENDPOINT": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"aws_endpoint_url": "http://minio:9000"}, False),
        ("s3://bucket/prefix", None, {"AZURE_STORAGE_USE_EMULATOR": "true"}, False),
        ("s3://bucket/prefix", None, {"GOOGLE_BASE_URL": "http://gcs:4443"}, False),
        ("s3://bucket/prefix", None, {"GOOGLE_SERVICE_ACCOUNT": "/etc/key.json"}, False),
        ("s3://bucket/prefix", None, {"AWS_REGION": "r", "AWS_ACCESS_KEY_ID": "k", "MY_ENDPOINT": "e"}, True),
        ("s3://bucket/prefix", None, {}, True),
    ],
)
def test_only_a_store_without_an_endpoint_has_a_clock_of_its_own(
    url: str, endpoint: str | None, environ: dict[str, str], is_own: bool, without_cloud_variables: pytest.MonkeyPatch
) -> None:
    """Any endpoint may be this very machine."""
    for name, value in environ.items():
        without_cloud_variables.setenv(name, value)
    options = ObjectStoreOptions(endpoint=endpoint, region="r", allow_http=True)
    with closing(ObjectRemoteStorageManager(open_object_client(url, options))) as storage:
        assert has_own_clock(storage) is is_own
    named = replace(options, properties={"azure_storage_use_emulator": "true"})
    with closing(ObjectRemoteStorageManager(open_object_client(url, named))) as storage:
        assert not has_own_clock(storage)


@pytest.mark.usefixtures("without_cloud_variables")
def test_a_derived_class_has_the_clock_of_its_client(tmp_path: Path) -> None:
    class Derived(ObjectRemoteStorageManager):
        pass

    for url, is_own in (("s3://bucket/prefix", True), (f"file://{tmp_path}", False)):
        with closing(Derived(open_object_client(url, ObjectStoreOptions(region="r")))) as storage:
            assert has_own_clock(storage) is is_own


def test_object_times_of_a_custom_store_may_come_from_this_machines_clock(tmp_path: Path) -> None:
    own = runpy.run_path(str(OWN_STORE))["SqliteObjects"]
    with closing(ObjectRemoteStorageManager(own(f"sqlite://{tmp_path}/objects.db", 1000))) as storage:
        assert not has_own_clock(storage)


def test_a_store_that_cannot_be_listed_shows_no_clock() -> None:
    assert not has_own_clock(cast(RemoteStorageManager, object()))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_obstore_takes_an_endpoint_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So has_own_clock looks there too."""
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    options = ObjectStoreOptions(region="r", access_key_id="k", secret_access_key="s", max_retries=0)
    with closing(ObjectRemoteStorageManager(open_object_client("s3://bucket/prefix", options))) as storage:
        with pytest.raises(RemoteStorageError, match=r"127\.0\.0\.1:1"):
            storage.read_identity()
        assert not has_own_clock(storage)


def test_this_machines_own_clocks_agree(tmp_path: Path) -> None:
    first, then = machine_boot_time(), machine_boot_time()
    assert first.boot_id == then.boot_id != "unknown"
    assert 0 <= then.ms - first.ms < HOUR


@pytest.mark.parametrize(
    ("state", "status", "is_synchronised"),
    [(0, 0x2001, True), (1, 0x11, True), (0, 0x40, False), (5, 0, False), (5, 0x40, False), (-1, 0, False)],
)
def test_the_kernel_says_whether_ntp_synchronised_the_clock(
    monkeypatch: pytest.MonkeyPatch, state: int, status: int, is_synchronised: bool
) -> None:
    def adjtimex(found: Any) -> int:
        assert found.contents.modes == 0, "nothing is set"
        found.contents.status = status
        return state

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(adjtimex=adjtimex))
    assert machine_boot_time().is_synchronised is is_synchronised


def test_a_kernel_that_does_not_say_it_has_not_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace())
    assert not is_synchronised_by_ntp()
