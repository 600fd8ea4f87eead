"""Opening a SQL metadata store: URLs, new files, several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from support.clocks import ManualClock
from support.metadata_stores import FINISHED, ORDERS_0, a_segment, a_step, add_and_bring_to, sqlite_store
from tiered_storage.errors import (
    ConfigurationError,
    LeaseLostError,
    MetadataCorruptError,
    MetadataMissingError,
    MetadataUnavailableError,
)
from tiered_storage.remote_log.metadata.sql.database.schema import segments
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId, write_metadata_topic


def test_a_new_store_is_made_with_its_directories_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet" / "remote log.sqlite"

    open_metadata_store(f"sqlite:///{path}", ManualClock()).close()

    assert set(path.parent.iterdir()) == {path, path.with_name(f"{path.name}-reserve")}


def test_a_store_keeps_what_was_written_when_it_is_opened_again(tmp_path: Path, clock: ManualClock) -> None:
    with sqlite_store(tmp_path, clock) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)

    with sqlite_store(tmp_path, clock) as store:
        assert store.segments.remote_log_segment_metadata(ORDERS_0, 0) == finished
        store.leases.check(lease)


def test_a_file_name_with_signs_that_mean_something_in_a_uri_is_just_a_name(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "100%#1&é.sqlite"

    for _ in range(2):
        with open_metadata_store("sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F"), clock) as store:
            store.leases.acquire(ORDERS_0, "run-1", 60_000)

    assert set(tmp_path.iterdir()) == {path, path.with_name(f"{path.name}-reserve")}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "write sqlite:///"),
        ("/var/lib/metadata.sqlite", "write sqlite:///"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:///metadata.sqlite?mode=ro", "name a file"),
        ("sqlite://host/metadata.sqlite", "name a file"),
        ("mysql://root:secret@host/metadata", r"mysql://root:\*\*\*@host/metadata: metadata are kept in SQLite"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        open_metadata_store(url, ManualClock())

    assert "secret" not in str(refused.value)


def test_a_relative_path_is_not_followed_elsewhere_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_metadata_store("sqlite:///metadata.sqlite", ManualClock()) as store:
        monkeypatch.chdir(os.sep)
        store.leases.acquire(ORDERS_0, "run-1", 60_000)

    assert (tmp_path / "metadata.sqlite").is_file()


def test_threads_that_open_a_new_store_at_once_all_get_the_same_one(tmp_path: Path, clock: ManualClock) -> None:
    def metadata_uuid(_: int) -> str:
        with sqlite_store(tmp_path, clock) as store:
            return store.identity.metadata_uuid

    with ThreadPoolExecutor(4) as threads:
        uuids = set(threads.map(metadata_uuid, range(8)))

    assert len(uuids) == 1


def test_threads_share_one_opened_store(store: SqlMetadataStore) -> None:
    partitions = [replace(ORDERS_0, partition=number) for number in range(8)]

    def copy_twenty(number: int) -> int:
        lease = store.leases.acquire(partitions[number], "run-1", 60_000)
        for start in range(0, 200, 10):
            add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED)
        return len(list(store.segments.list_remote_log_segments(partitions[number])))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(copy_twenty, range(8))) == [20] * 8


def test_a_store_that_was_open_across_a_fork_loses_nothing_in_either_process(
    store: SqlMetadataStore, tmp_path: Path, clock: ManualClock
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    started = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(started, lease)
    closed_here, may_proceed = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            os.read(closed_here, 1)
            store.segments.update_remote_log_segment_metadata(a_step(started, FINISHED), lease)
        except BaseException:  # noqa: BLE001 - the child must not continue with the tests
            os._exit(1)
        os._exit(0)
    # An inherited connection would not notice that the last one closes here, and takes the write-ahead log along.
    store.close()
    os.write(may_proceed, b".")
    _, status = os.waitpid(child, 0)
    os.close(closed_here)
    os.close(may_proceed)

    assert os.waitstatus_to_exitcode(status) == 0
    with sqlite_store(tmp_path, clock) as reopened:
        found = reopened.segments.remote_log_segment_metadata(ORDERS_0, 5)
        assert found is not None
        assert found.state is FINISHED
        reopened.check_integrity()


def test_opening_an_up_to_date_store_does_not_load_the_migrations(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_store(tmp_path, clock).close()

    def refuse(*_: object) -> None:
        raise AssertionError("migrations were run")

    monkeypatch.setattr("tiered_storage.remote_log.metadata.sql.database.schema_migrations.upgrade", refuse)
    monkeypatch.setattr("tiered_storage.remote_log.metadata.sql.store.upgrade", refuse)

    with sqlite_store(tmp_path, clock) as store:
        store.leases.acquire(ORDERS_0, "run-1", 60_000)


def test_a_store_that_was_replaced_meanwhile_is_not_written_to_any_more(
    store: SqlMetadataStore, path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    sqlite_store(tmp_path / "new", clock).close()
    (tmp_path / "new" / path.name).replace(path)

    with pytest.raises(MetadataUnavailableError, match=f"{path}"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease), lease)
    with pytest.raises(MetadataUnavailableError):
        store.segments.list_partitions()


def test_a_process_that_ran_while_the_segments_moved_into_a_topic_reports_none_as_missing(
    store: SqlMetadataStore,
) -> None:
    """It would answer that nothing is remote, and readers would skip what is."""
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    moved = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    reads: dict[str, Callable[[], object]] = {
        "look-up": lambda: store.segments.remote_log_segment_metadata(ORDERS_0, 5),
        "epoch": lambda: store.segments.highest_offset_for_epoch(ORDERS_0, 0),
        "list": lambda: list(store.segments.list_remote_log_segments(ORDERS_0)),
        "deleted": lambda: list(store.segments.list_deleted_segments(ORDERS_0, 0, 9)),
        "counts": lambda: store.segments.count_remote_log_segments(ORDERS_0),
        "totals": store.segments.segment_totals,
        "by id": lambda: store.segments.segment_by_id(moved.segment_id),
        "known ids": lambda: store.segments.known_segment_ids(ORDERS_0, [moved.segment_id.id]),
    }
    for read in reads.values():
        read()
    with store.database.writing() as connection:
        connection.execute(delete(segments))
        write_metadata_topic(connection, MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 3))

    for name, read in reads.items():
        with pytest.raises(MetadataMissingError, match=r"remote\.log\.metadata\.manager\.class\.name"):
            pytest.fail(f"{name}: {read()}")


def test_a_store_that_was_removed_meanwhile_is_reported_and_not_made_again(store: SqlMetadataStore, path: Path) -> None:
    store.leases.acquire(ORDERS_0, "run-1", 60_000)
    path.unlink()

    with pytest.raises(MetadataUnavailableError, match=f"{path}"):
        store.leases.acquire(ORDERS_0, "run-1", 60_000)

    assert not path.exists()


def test_a_restored_store_refuses_the_leases_that_it_never_gave(tmp_path: Path, path: Path, clock: ManualClock) -> None:
    with sqlite_store(tmp_path, clock) as store:
        store.leases.acquire(ORDERS_0, "run-1", 60_000)
    backup = path.read_bytes()
    with sqlite_store(tmp_path, clock) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    path.write_bytes(backup)

    with sqlite_store(tmp_path, clock) as store, pytest.raises(LeaseLostError, match="rebuilt or restored"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease), lease)


def test_the_integrity_check_finds_what_no_call_has_noticed(tmp_path: Path, path: Path, clock: ManualClock) -> None:
    with sqlite_store(tmp_path, clock) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        segment = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
        store.check_integrity()
    name = segment.segment_id.id.encode()
    path.write_bytes(path.read_bytes().replace(name, name[:-1] + b"X", 1))

    with sqlite_store(tmp_path, clock) as store:
        store.identity.bound_store_uuid()
        with pytest.raises(MetadataCorruptError, match=f"{path}: is damaged "):
            store.check_integrity()
