"""Faults of a SQLite file are reported, and the file is not changed."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import FINISHED, ORDERS_0, a_segment, add_and_bring_to, sqlite_store, sqlite_url
from tiered_storage.errors import (
    ConfigurationError,
    MetadataCorruptError,
    MetadataUnavailableError,
    RemoteMetadataError,
)
from tiered_storage.remote_log.metadata.sql.database import sqlite_database
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import SqliteDatabase, file_identity
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from unit.unprivileged import as_nobody


@pytest.fixture
def filled(tmp_path: Path, path: Path, clock: ManualClock) -> Path:
    """A closed store of some hundred segments: the path of its file."""
    with sqlite_store(tmp_path, clock) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        segments = [(a_segment(lease, start, start + 9), lease) for start in range(0, 4_000, 10)]
        store.segments.add_remote_log_segments(segments)
    return path


def read_all(path: Path) -> None:
    """Open the store and read and write what there is."""
    with open_metadata_store(f"sqlite:///{path}", ManualClock(), busy_timeout_ms=20) as store:
        list(store.segments.list_remote_log_segments(ORDERS_0))
        store.leases.acquire(ORDERS_0, "run-1", 60_000)
        store.check_integrity()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "content",
    [b"", b"?", b"SQLite format 3\0" * 200, b"not a database\n" * 1_000, b"SQLite format 3\0" * 256],
    ids=["empty", "one byte", "not a page", "text", "headers"],
)
def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(MetadataCorruptError, match=f"{path}"):
        read_all(path)

    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [0.5, 0.3], ids=["half", "a third"])
@pytest.mark.parametrize("torn", [0, 1_000], ids=["at a page", "within a page"])
def test_a_truncated_file_is_refused(filled: Path, kept: float, torn: int) -> None:
    size = int(filled.stat().st_size * kept) // 4_096 * 4_096 + torn
    with filled.open("r+b") as file:
        file.truncate(size)
    before = digest(filled)

    with pytest.raises(MetadataCorruptError, match=f"{filled}"):
        read_all(filled)

    assert digest(filled) == before


@pytest.mark.parametrize("table", ["segments", "leases", "segments_by_offset"])
def test_a_damaged_page_is_reported(filled: Path, table: str) -> None:
    database = sqlite3.connect(filled)
    (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    database.close()
    with filled.open("r+b") as file:
        file.seek((root - 1) * 4_096)
        (first,) = file.read(1)
        file.seek((root - 1) * 4_096)
        file.write(bytes([first ^ 0b1000_0000]))
    before = digest(filled)

    with pytest.raises(MetadataCorruptError, match=f"{filled}"):
        read_all(filled)

    assert digest(filled) == before


@pytest.mark.parametrize(
    "damage",
    ["leader_epochs = '[[0'", "leader_epochs = '[1]'", "leader_epochs = 5", "state = 9"],
)
def test_a_row_that_we_cannot_have_written_is_reported(filled: Path, clock: ManualClock, damage: str) -> None:
    _execute(filled, f"UPDATE segments SET {damage} WHERE start_offset = 100")  # noqa: S608 - our own words

    with (
        sqlite_store(filled.parent, clock) as store,
        pytest.raises(MetadataCorruptError, match=f"{filled}.*segment-[0-9]+"),
    ):
        list(store.segments.list_remote_log_segments(ORDERS_0))


def test_a_state_that_there_is_not_is_reported_where_segments_are_counted(filled: Path, clock: ManualClock) -> None:
    _execute(filled, "UPDATE segments SET state = 9 WHERE start_offset = 100")

    with (
        sqlite_store(filled.parent, clock) as store,
        pytest.raises(MetadataCorruptError, match=rf"{filled}.*\b9\b"),
    ):
        store.segments.count_remote_log_segments(ORDERS_0)


def test_text_that_is_no_text_is_reported(filled: Path, clock: ManualClock) -> None:
    _execute(filled, "UPDATE segments SET topic = CAST(X'FFFE' AS TEXT) WHERE start_offset = 100")

    with sqlite_store(filled.parent, clock) as store, pytest.raises(MetadataCorruptError, match="UTF-8"):
        list(store.segments.list_remote_log_segments(ORDERS_0))


def test_a_damaged_topic_is_reported(filled: Path, clock: ManualClock) -> None:
    _execute(filled, "INSERT INTO topics VALUES ('cluster-1', 'id', 'orders', 1, 0, '[]', 0)")

    with sqlite_store(filled.parent, clock) as store, pytest.raises(MetadataCorruptError, match="topic orders"):
        store.topics.list()


@pytest.mark.parametrize(
    "row",
    [
        "lineages VALUES ('cluster-1', 'topic-id-of-ordersAAAA', 0, 'orders', '[[1]]')",
        "partition_deletions VALUES ('cluster-1', 'topic-id-of-ordersAAAA', 0, 'orders', 7, 1000)",
    ],
)
def test_a_damaged_partition_is_reported(filled: Path, clock: ManualClock, row: str) -> None:
    _execute(filled, f"INSERT INTO {row}")

    with sqlite_store(filled.parent, clock) as store:
        for ask in (store.segments.partition_states, lambda: store.segments.partition_state(ORDERS_0)):
            with pytest.raises(MetadataCorruptError, match="orders-0 is damaged"):
                ask()
        assert store.segments.log_start_offset(ORDERS_0) is None


def test_a_missing_database_beside_its_wal_file_is_reported(path: Path) -> None:
    log = path.with_name("metadata.sqlite-wal")
    log.write_bytes(b"the last commits")

    with pytest.raises(MetadataCorruptError, match="-wal"):
        read_all(path)

    assert not path.exists()
    assert log.read_bytes() == b"the last commits"


def test_a_directory_is_no_file(path: Path) -> None:
    path.mkdir()

    with pytest.raises(ConfigurationError, match=f"{path}"):
        read_all(path)


def test_a_file_in_place_of_a_directory_is_reported(path: Path) -> None:
    path.write_bytes(b"")

    with pytest.raises(ConfigurationError, match="/below"):
        read_all(path / "below")


@pytest.fixture
def locked(filled: Path) -> Iterator[Path]:
    other = sqlite3.connect(filled, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield filled
    other.execute("ROLLBACK")
    other.close()


def test_a_locked_database_fails_writers_and_not_readers(locked: Path, clock: ManualClock) -> None:
    with open_metadata_store(sqlite_url(locked.parent), clock, busy_timeout_ms=20) as store:
        assert len(list(store.segments.list_remote_log_segments(ORDERS_0))) == 400
        with pytest.raises(MetadataUnavailableError, match=rf"{locked}.*\b20 ms") as refused:
            store.leases.acquire(ORDERS_0, "run-1", 60_000)

    assert refused.value.retriable


def test_a_store_continues_once_it_is_no_longer_locked(filled: Path, clock: ManualClock) -> None:
    other = sqlite3.connect(filled, isolation_level=None)
    with open_metadata_store(sqlite_url(filled.parent), clock, busy_timeout_ms=20) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailableError):
            store.leases.acquire(ORDERS_0, "run-1", 60_000)
        other.execute("ROLLBACK")

        assert store.leases.acquire(ORDERS_0, "run-1", 60_000).fencing_number == 2
    other.close()


def test_a_store_that_another_program_keeps_for_itself_is_reported(filled: Path) -> None:
    other = sqlite3.connect(filled, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    with pytest.raises(MetadataUnavailableError, match=f"{filled}: database is locked"):
        read_all(filled)

    other.close()


def test_a_full_disk_is_reported_and_loses_nothing(filled: Path) -> None:
    with SqliteDatabase(filled, 20) as database:
        with database.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with (
            pytest.raises(MetadataUnavailableError, match="full: "),
            database.writing() as connection,
        ):
            connection.exec_driver_sql("DELETE FROM segments WHERE start_offset < 100")
            connection.exec_driver_sql("CREATE TABLE much AS SELECT zeroblob(1000000)")
        with database.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM segments").scalar_one() == 400
        database.check_integrity()


@pytest.mark.parametrize(
    ("directory_mode", "file_mode"), [(0o755, 0o444), (0o777, 0o444), (0o755, 0o666), (0o755, 0o600)]
)
def test_a_store_that_may_not_be_written_is_reported(directory_mode: int, file_mode: int, clock: ManualClock) -> None:
    # Not below tmp_path, which only its owner can enter.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sqlite_store(directory, clock).close()
        (directory / "metadata.sqlite").chmod(file_mode)
        directory.chmod(directory_mode)

        outcome = as_nobody(lambda: read_all(directory / "metadata.sqlite"))

    assert str(outcome).startswith(("RemoteMetadataError", "MetadataUnavailableError"))
    assert f"{directory / 'metadata.sqlite'}: " in str(outcome)
    assert "write" in str(outcome)


def test_a_store_that_cannot_be_made_where_it_should_be_is_reported(clock: ManualClock) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)

        outcome = as_nobody(lambda: read_all(Path(name, "metadata.sqlite")))

    assert str(outcome).startswith("ConfigurationError")
    assert "Permission denied" in str(outcome)


@pytest.mark.usefixtures("synced")
def test_a_commit_waits_for_the_disk(filled: Path) -> None:
    with SqliteDatabase(filled, 20) as database, database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"


def test_a_backup_that_lost_its_mode_gets_it_back(filled: Path, clock: ManualClock) -> None:
    database = sqlite3.connect(filled)
    assert database.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    database.close()

    with sqlite_store(filled.parent, clock):
        database = sqlite3.connect(filled)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database.close()


def test_a_writer_holds_the_lock_from_the_beginning(filled: Path) -> None:
    with SqliteDatabase(filled, 20) as one, SqliteDatabase(filled, 20) as two, one.writing():
        with pytest.raises(MetadataUnavailableError), two.writing():
            pass
        with two.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM segments").scalar_one() == 400


def test_an_error_in_a_transaction_takes_all_of_it_back(filled: Path) -> None:
    with SqliteDatabase(filled, 20) as database:
        with pytest.raises(ZeroDivisionError), database.writing() as connection:
            connection.exec_driver_sql("DELETE FROM segments")
            raise ZeroDivisionError
        with database.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM segments").scalar_one() == 400


def test_other_errors_of_sqlite_are_reported(filled: Path) -> None:
    with (
        SqliteDatabase(filled, 20) as database,
        pytest.raises(RemoteMetadataError, match=f"{filled}: .*nowhere"),
        database.reading() as connection,
    ):
        connection.exec_driver_sql("SELECT * FROM nowhere")


def test_a_finished_copy_survives_a_process_that_dies(tmp_path: Path, clock: ManualClock) -> None:
    store = sqlite_store(tmp_path, clock)
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    # What a dead process leaves: the file and its log, never joined.
    left = tmp_path / "left"
    left.mkdir()
    for name in ("metadata.sqlite", "metadata.sqlite-wal"):
        (left / name).write_bytes((tmp_path / name).read_bytes())
    store.close()

    with sqlite_store(left, clock) as reopened:
        assert reopened.segments.remote_log_segment_metadata(ORDERS_0, 0) == finished


def _execute(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute(statement)
    database.close()


def test_a_file_in_the_place_of_another_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    seen = set()
    for _ in range(20):
        path.write_bytes(b"a")
        first = file_identity(path)
        path.write_bytes(b"bb")
        assert file_identity(path) == first
        assert first.startswith(f"inode {path.stat().st_ino}")
        seen.add(first)
        path.unlink()
    assert len(seen) == 20


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        ("1" * 32, "1" * 32, True),
        ("1" * 32, "2" * 32, False),
        (None, "2" * 32, True),
        ("1" * 32, None, True),
        ("1" * 32, "", True),
        ("1" * 32, "uninitialized", True),
        (None, None, True),
    ],
)
def test_the_same_file_on_another_machine_is_at_another_place(
    tmp_path: Path,
    path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    then: str | None,
    now: str | None,
    is_same: bool,
) -> None:
    machine_id = tmp_path / "machine-id"
    monkeypatch.setattr(sqlite_database, "MACHINE_ID", machine_id)

    def start_on(machine: str | None) -> None:
        machine_id.unlink(missing_ok=True)
        if machine is not None:
            machine_id.write_text(f"{machine}\n")

    sqlite_store(tmp_path, clock).close()
    database = SqliteDatabase(path, 1000)
    try:
        start_on(then)
        place = database.place()
        assert database.is_at(place)
        assert then is None or then not in place
        start_on(now)
        assert database.is_at(place) is is_same
        assert not database.is_at(None)
        assert not database.is_at(place.replace("inode ", "inode 1"))
    finally:
        database.close()
