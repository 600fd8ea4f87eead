"""A fencing or generation number so high that none can follow it locks nobody out and is no traceback."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import run_on
from support.metadata_files import remove_metadata
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log, copy, end_below, held_by
from tiered_storage.errors import MetadataCorruptError, RemoteObjectCorruptError
from tiered_storage.remote_log.model import PartitionState
from tiered_storage.remote_log.storage.documents.object_names import (
    HIGHEST_NUMBER,
    PartitionManifestName,
    partition_manifests_folder,
)
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration

HIGHEST_INT64 = 2**63 - 1
TOO_HIGH = [HIGHEST_NUMBER + 1, HIGHEST_INT64 - 2**32 + 1, HIGHEST_INT64]


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        end_below(remote_log, 10)
    return files


def put_document(files: RemoteLogFiles, number: int) -> Path:
    document = PartitionManifest(ORDERS_0, number, PartitionState(), 5)
    path = files.store / partition_manifests_folder(ORDERS_0) / f"{number:020}.json"
    path.write_bytes(document.to_bytes())
    return path


@pytest.mark.parametrize("number", TOO_HIGH)
def test_a_partition_document_that_no_lease_can_have_written_is_not_ours(files: RemoteLogFiles, number: int) -> None:
    path = put_document(files, number)
    os.utime(path, (0, 0))
    files.append(2)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        end_below(remote_log, 20)
        found = [anomaly.what for anomaly in remote_log.checks.audit().anomalies]
    assert [path.name in what for what in found] == [True], found
    assert path.exists()


@pytest.mark.parametrize("number", TOO_HIGH)
@pytest.mark.parametrize("command", ["rebuild-metadata", "take-over"])
def test_metadata_are_rebuilt_beside_a_document_with_an_impossible_number(
    files: RemoteLogFiles, number: int, command: str
) -> None:
    put_document(files, number)
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    if command == "take-over":
        files.store.joinpath("store.generation").rename(files.root / "away")
        done = run_on(files, "metadata", "take-over", "--yes")
        assert done.exit_code == 0, done.err
    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10
        assert held_by(remote_log, "test").fencing_number < HIGHEST_NUMBER


@pytest.mark.parametrize("number", TOO_HIGH)
def test_an_impossible_generation_number_locks_nobody_out(files: RemoteLogFiles, number: int) -> None:
    path = files.store / "store.generation" / f"{number:020}.json"
    path.write_bytes(StoredGeneration(number, "token", "forged", 5).to_bytes())
    files.append(2)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert run_on(files, "metadata", "take-over", "--yes").exit_code == 0
    assert run_on(files, "expire").exit_code == 0


@pytest.mark.parametrize("field", ["fencing_number", "number"])
def test_a_document_with_such_a_number_in_it_is_refused_by_name(field: str) -> None:
    document = PartitionManifest(ORDERS_0, 7, PartitionState(), 5)
    written = StoredGeneration(7, "token", "reason", 5) if field == "number" else document
    raw = written.to_bytes().replace(b'number":7', b'number":%d' % HIGHEST_INT64)
    with pytest.raises(RemoteObjectCorruptError, match=f"the object: {field} is {HIGHEST_INT64}: "):
        type(written).parse(raw, "the object")


@pytest.mark.parametrize("command", ["rebuild-metadata", "take-over"])
def test_the_last_number_before_that_is_an_error_that_names_the_object(files: RemoteLogFiles, command: str) -> None:
    with files.open() as remote_log:
        remote_log.context.bind_store()
    path = put_document(files, HIGHEST_NUMBER)
    if command == "rebuild-metadata":
        remove_metadata(files)
        done = run_on(files, command, "--yes")
    else:
        files.store.joinpath("store.generation").rename(files.root / "away")
        done = run_on(files, "metadata", command, "--yes")
    assert done.exit_code == 1
    assert f"fencing number {HIGHEST_NUMBER}" in done.err
    assert "/".join(path.parts[-3:]) in done.err


def test_a_generation_at_the_last_number_is_an_error(files: RemoteLogFiles) -> None:
    path = files.store / "store.generation" / f"{HIGHEST_NUMBER:020}.json"
    path.write_bytes(StoredGeneration(HIGHEST_NUMBER, "token", "forged", 5).to_bytes())
    done = run_on(files, "metadata", "take-over", "--yes")
    assert done.exit_code == 1
    assert f"store.generation/{HIGHEST_NUMBER:020}.json" in done.err


@pytest.mark.parametrize("number", [HIGHEST_NUMBER, HIGHEST_INT64])
def test_a_lease_in_the_metadata_after_which_none_can_come_is_an_error(files: RemoteLogFiles, number: int) -> None:
    with closing(sqlite3.connect(files.root / "state" / "remote_log_metadata.db")) as connection, connection:
        connection.execute("UPDATE leases SET fencing_number = ?", (number,))
    with files.open() as remote_log:
        for take in (
            lambda: held_by(remote_log, "test"),
            lambda: remote_log.context.store.leases.begin_above({ORDERS_0: number + 1}),
        ):
            with pytest.raises(MetadataCorruptError, match=f"orders-0.*fencing number {number}"):
                take()


def test_names_are_built_from_numbers_that_can_be_read_again() -> None:
    name = PartitionManifestName(ORDERS_0, 7)
    assert replace(name, fencing_number=HIGHEST_NUMBER).name.endswith(f"/{HIGHEST_NUMBER:020}.json")
