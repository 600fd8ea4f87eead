from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import mentions
from support.examinations import JAVA_IS_ELSEWHERE, examined
from support.remote_logs import a_copied_remote_log, a_remote_log
from tiered_storage.clock import wall_clock
from tiered_storage.doctor import object_stores
from tiered_storage.doctor.check import Check, Status
from tiered_storage.doctor.object_stores import check_folder, check_objects
from tiered_storage.errors import RemoteStorageError, RemoteStorageFullError, RemoteStorageRefusedError
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import StoredObject
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from unit.tiered_storage.doctor.folders import everything_in


@dataclass
class Misbehaving(LocalDirectory):
    """A directory that refuses, or does otherwise than it is asked to."""

    folder: Path
    faults: set[str]
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.folder)

    def create(self, name: str, content: bytes) -> bool:
        if "create" in self.faults:
            raise RemoteStorageRefusedError(f"{name}: may not create it")
        if "full" in self.faults:
            raise RemoteStorageFullError(f"{name}: no room")
        if "overwrites" in self.faults:
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(content)
            return True
        return super().create(name, content)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        content = super().get_range(name, start, length)
        return content[::-1] if "other bytes" in self.faults else content

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        if "list" in self.faults:
            raise RemoteStorageRefusedError(f"{folder}: may not list it")
        return iter(()) if "lists nothing" in self.faults else super().list(folder, after)

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        if "delete" in self.faults:
            return {name: RemoteStorageRefusedError(f"{name}: may not remove it") for name in names}
        return {} if "keeps" in self.faults else super().delete_many(names)


def probed(folder: Path, monkeypatch: pytest.MonkeyPatch, *faults: str) -> list[Check]:
    monkeypatch.setattr(object_stores, "open_object_client", lambda *_: Misbehaving(folder, set(faults)))
    return list(check_objects("store", folder.as_uri(), ObjectStoreOptions(), wall_clock))


def wrong(checks: list[Check]) -> list[str]:
    return [f"{check.message} | {check.advice}" for check in checks if check.status is Status.WRONG]


def test_a_store_that_works_is_left_as_it_was(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    before = everything_in(files.store)

    found = examined(files)

    assert found.wrong() == []
    assert len(found.ok("store")) == 4
    assert everything_in(files.store) == before


def test_a_store_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    found = examined(files)

    assert f"{files.store} does not exist yet" in found.notes("store")[0]
    assert not files.store.exists()
    assert not (files.root / "state" / "work").exists()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("create", "may not create it"),
        ("full", "no room"),
        ("overwrites", "(If-None-Match: *)"),
        ("other bytes", "other bytes"),
        ("list", "may not list it"),
        ("lists nothing", "lists 0 objects"),
        ("keeps", "deleted object"),
    ],
)
def test_doctor_reports_what_a_store_fails_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, expected: str
) -> None:
    [found] = wrong(probed(tmp_path, monkeypatch, fault))

    assert expected in found
    assert fault == "keeps" or list(tmp_path.iterdir()) == []


def test_an_object_that_may_not_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = wrong(probed(tmp_path, monkeypatch, "delete"))

    [left] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert f"remove {left.as_uri()} by hand" in found


def test_a_check_that_is_not_read_to_its_end_leaves_no_object(tmp_path: Path) -> None:
    checks = check_objects("store", tmp_path.as_uri(), ObjectStoreOptions(), wall_clock)
    next(iter(checks))
    next(iter(checks))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("apart_ms", "status"),
    [(0, Status.OK), (60_000, Status.NOTE), (-60_000, Status.NOTE), (900_000, Status.WRONG)],
)
def test_a_clock_that_is_wrong_is_reported(tmp_path: Path, apart_ms: int, status: Status) -> None:
    clock = ManualClock(wall_clock() + apart_ms)

    checks = list(check_objects("store", tmp_path.as_uri(), ObjectStoreOptions(), clock))

    [found] = [check for check in checks if " clock " in check.message]
    assert found.status is status


def test_a_url_that_makes_no_store_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = a_remote_log(tmp_path, rsm_config_url=str(tmp_path / "file"))

    found = examined(files)

    assert mentions(found.wrong("store")[0], tmp_path / "file", "directory")
    assert found.ok("metadata") != []


def test_a_custom_class_gives_a_note(tmp_path: Path) -> None:
    name = "crashes.storages.DyingStorage"
    [message] = examined(a_remote_log(tmp_path, remote_log_storage_manager_class_name=name)).notes("store")

    assert name in message


def test_a_disk_that_fills_up_is_worth_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stores, "free_bytes", lambda _: 100 << 20)

    _, check = check_folder("store", tmp_path)

    assert (check.status, check.message) == (Status.NOTE, f"{tmp_path}: 104,857,600 bytes are free")


def test_a_folder_below_a_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    check = next(iter(check_folder("state.directory", tmp_path / "file" / "state")))

    assert (check.status, check.message) == (Status.WRONG, f"{tmp_path / 'file'} is not a folder")


def test_a_store_out_of_reach_is_wrong(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path,
        rsm_config_url="s3://nowhere/prefix",
        rsm_config_endpoint="http://127.0.0.1:9",
        rsm_config_allow_http=True,
        rsm_config_region="here",
    )
    secrets = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "PATH": ""}

    found = examined(files, secrets)

    assert "s3://nowhere/prefix" in found.wrong("store")[0]
    assert len(found.wrong("pair")) == 1
    assert found.ok("topics") != []


def test_an_endpoint_with_credentials_is_reported_without_them(tmp_path: Path) -> None:
    examination = examined(a_remote_log(tmp_path), {**JAVA_IS_ELSEWHERE, "AWS_ENDPOINT_URL": "https://key:hush@host"})
    [wrong] = examination.wrong("settings")
    assert mentions(wrong, "AWS_ENDPOINT_URL", "Airflow connection")
    assert "hush" not in wrong
