"""Every call on metadata in PostgreSQL, with a connection that is lost in the middle of it: all of it, or nothing."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import insert, text

from integration.metadata.metadata_calls import READS, WRITES, Call, Filled, fill, methods_of_the_border
from servers.postgres import server_crashes_at, the_server
from servers.postgres_proxy import PostgresProxy, proxy
from support.clocks import ManualClock
from support.metadata_stores import dump
from tiered_storage.errors import InvalidTransitionError, MetadataUnavailableError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql import generation
from tiered_storage.remote_log.metadata.sql.database.postgres_database import PostgresDatabase
from tiered_storage.remote_log.metadata.sql.database.schema import VERSION_TABLE, metadata
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store

WAIT_MS = 20_000

PREPARED = {
    "generation.renew": "UPDATE generation SET next_token = NULL",
    "identity.bind_store": "UPDATE store_identity SET bound_store_uuid = NULL",
    "clock_readings.begin": "DELETE FROM clock_readings",
}
"""What makes a call change something after `fill`."""

OF_METADATA_TOPICS = {"topic_segments"}
"""Tables of a database beside a metadata topic, empty in every other."""

Rows = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Site:
    """A filled store behind a proxy, and its database without the proxy; `rows` are what it has before each call."""

    url: str
    proxy: PostgresProxy
    store: SqlMetadataStore
    filled: Filled
    database: PostgresDatabase
    rows: Rows

    def reset(self, prepared: str = "SELECT 1") -> Rows:
        """Write the first rows again and run the statement `prepared`; return all rows."""
        with self.database.writing() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
                names = table.columns.keys()
                if rows := [dict(zip(names, row, strict=True)) for row in self.rows[table.name]]:
                    connection.execute(insert(table), rows)
            connection.execute(text(prepared))
        return self.dump()

    def dump(self) -> Rows:
        with self.database.reading() as connection:
            return dump(connection, metadata)

    def call(self, call: Call) -> str:
        """Make a call; return whether it was "done", "refused" for now, or is "invalid"."""
        try:
            call(self.store, self.filled)
        except MetadataUnavailableError as error:
            assert error.retriable
            return "refused"
        except InvalidTransitionError:
            return "invalid"
        return "done"

    def cut(self, call: Call, message: int) -> tuple[str, bool]:
        """Make a call that loses its connection before the message of this number; return also whether it did."""
        self.store.topics.list()  # so that there is a connection
        self.proxy.has_crashed.clear()
        self.proxy.cuts_before = message
        outcome = self.call(call)
        was_cut, self.proxy.cuts_before = not self.proxy.cuts_before, 0
        if was_cut and self.proxy.crash is not None:
            assert self.proxy.has_crashed.wait(60)
        return outcome, was_cut

    def garbled(self, call: Call, answer: int) -> tuple[str, bool]:
        """Make a call whose answer of this number has a byte that is not text; return also whether it came to that."""
        self.store.topics.list()  # so that there is a connection
        left = itertools.count(answer, -1)
        garbles: list[bytes] = []

        def change(data: bytes) -> bytes:
            if next(left) != 1:
                return data
            garbles.append(data)
            at = _in_a_row(data)
            return data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]

        self.proxy.change = change
        try:
            return self.call(call), bool(garbles)
        finally:
            self.proxy.change = bytes


def _in_a_row(data: bytes) -> int:
    """Return where in an answer the last value of its last row ends, or the answer's middle."""
    at, last = 0, len(data) // 2
    while at + 5 <= len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5])
        if data[at : at + 1] == b"D":
            last = end - 1
        at = end
    return last


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    url = the_server().database("every_call")
    with (
        mock.patch.object(generation, "random_uuid", lambda: "a token"),
        proxy(the_server().port) as between,
        PostgresDatabase(url, WAIT_MS) as database,
    ):
        through = url.replace(str(the_server().port), str(between.port))
        with open_metadata_store(through, ManualClock(), busy_timeout_ms=WAIT_MS) as store:
            filled = fill(store)
            with database.reading() as connection:
                rows = dump(connection, metadata)
            yield Site(through, between, store, filled, database, rows)


def test_every_method_of_the_border_is_called() -> None:
    assert {*READS, *WRITES, "copy_to", "open"} == methods_of_the_border()


def test_every_table_has_rows_and_every_write_changes_some(site: Site) -> None:
    assert {name for name, rows in site.rows.items() if not rows} == OF_METADATA_TOPICS
    for name, call in WRITES.items():
        before = site.reset(PREPARED.get(name, "SELECT 1"))
        call(site.store, site.filled)
        assert site.dump() != before, name


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_loses_its_connection_before_the_commit_changes_nothing(site: Site, name: str) -> None:
    call, prepared = WRITES[name], PREPARED.get(name, "SELECT 1")
    before = site.reset(prepared)
    site.proxy.loses_commit = "question"

    assert site.call(call) == "refused"

    assert not site.proxy.loses_commit
    assert site.dump() == before
    assert site.call(call) == "done"


def ensure_all_or_nothing(site: Site, name: str, disturbed: Callable[[Call, int], tuple[str, bool]]) -> None:
    """A write changes all or nothing, and can be repeated, wherever it is disturbed.

    `disturbed` calls, disturbs before the message of that number, and returns the outcome, and whether it did disturb.
    """
    call, prepared = WRITES[name], PREPARED.get(name, "SELECT 1")
    before = site.reset(prepared)
    assert site.call(call) == "done"
    after = site.dump()

    outcomes = []
    for message in itertools.count(1):
        site.reset(prepared)
        outcome, was_disturbed = disturbed(call, message)
        outcomes.append(outcome)
        assert site.dump() == (after if outcome == "done" else before), message
        if outcome == "refused":
            assert site.call(call) == "done"
            assert site.dump() == after, message
        if not was_disturbed:
            break
    assert "refused" in outcomes


@pytest.mark.nightly
@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_loses_its_connection_anywhere_changes_all_or_nothing(site: Site, name: str) -> None:
    ensure_all_or_nothing(site, name, site.cut)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_server_crashes_anywhere_changes_all_or_nothing(site: Site, name: str) -> None:
    def crashed(call: Call, message: int) -> tuple[str, bool]:
        with server_crashes_at(site.store, message) as has_crashed:
            outcome = site.call(call)
        return outcome, has_crashed()

    ensure_all_or_nothing(site, name, crashed)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_commit_is_not_confirmed_may_be_repeated(site: Site, name: str) -> None:
    call, prepared = WRITES[name], PREPARED.get(name, "SELECT 1")
    again = "invalid" if name == "segments.undelete" else "done"
    site.reset(prepared)
    assert site.call(call) == "done"
    once = site.dump()
    assert site.call(call) == again
    twice = site.dump()

    site.reset(prepared)
    site.proxy.loses_commit = "answer"
    assert site.call(call) == "refused"
    assert not site.proxy.loses_commit
    assert site.dump() == once, "it was made"

    assert site.call(call) == again
    assert site.dump() == twice


def ensure_retriable(site: Site, folder: Path, name: str, last: int) -> None:
    """A read that is disturbed before any of the messages up to the one of number `last` may be repeated.

    It changes nothing, and leaves no file in the empty `folder`. The second message follows on BEGIN.
    """

    def copy(store: SqlMetadataStore, _: Filled) -> None:
        target = folder / "copied.db"
        assert not target.exists(), "a copy that broke off"
        store.copy_to(target)
        target.unlink()

    def open_again(_store: SqlMetadataStore, _: Filled) -> None:
        open_metadata_store(site.url, ManualClock(), create=False, busy_timeout_ms=WAIT_MS).close()

    call = {**READS, "copy_to": copy, "open": open_again}[name]
    before = site.reset()
    for message in range(2, last + 1):
        outcome, was_cut = site.cut(call, message)
        assert site.dump() == before
        if not was_cut:
            break
        assert site.call(call) == "done"
    assert last == 2 or outcome == "done"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", [*READS, "copy_to", "open"])
@pytest.mark.parametrize("last", [2, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_read_that_loses_its_connection_is_retriable_and_changes_nothing(
    site: Site, tmp_path: Path, name: str, last: int
) -> None:
    ensure_retriable(site, tmp_path, name, last)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*READS, "copy_to", "open"])
def test_a_read_whose_server_crashes_anywhere_is_retriable_and_changes_nothing(
    site: Site, tmp_path: Path, name: str
) -> None:
    with mock.patch.object(site.proxy, "crash", lambda: the_server().restart(signal.SIGQUIT)):
        ensure_retriable(site, tmp_path, name, last=200)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("last", [2, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_read_whose_answer_is_garbled_is_retriable_and_the_next_one_is_right(
    site: Site, name: str, last: int
) -> None:
    """The second answer follows on BEGIN."""
    call, before = READS[name], site.reset()
    for answer in range(2, last + 1):
        outcome, was_garbled = site.garbled(call, answer)
        assert outcome in {"done", "refused"}
        assert site.call(call) == "done"
        if not was_garbled:
            break
    assert last == 2 or not was_garbled
    assert site.dump() == before


@pytest.mark.parametrize("anywhere", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_backup_whose_answer_is_garbled_is_refused_and_leaves_no_file(
    site: Site, tmp_path: Path, anywhere: bool
) -> None:
    """The server sends the rows of each table in parts, to a cursor of its own."""
    target, before = tmp_path / "copied.db", site.reset()

    def copy(store: SqlMetadataStore, _: Filled) -> None:
        try:
            store.copy_to(target)
        except MetadataUnavailableError:
            raise
        except RemoteMetadataError as error:
            # A row that became another valid one: the comparison with the source finds it, whatever garbled it.
            assert "than its source" in str(error)
            raise MetadataUnavailableError(str(error)) from error

    outcomes = []
    for answer in itertools.count(2):
        outcome, was_garbled = site.garbled(copy, answer)
        outcomes.append(outcome)
        assert (outcome == "done") == target.exists(), answer
        target.unlink(missing_ok=True)
        if not was_garbled or (outcome == "refused" and not anywhere):
            break

    assert "refused" in outcomes
    assert list(tmp_path.iterdir()) == []
    assert site.dump() == before


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("crashes", [False, True], ids=["the connection", "the server"])
def test_a_creation_that_loses_its_connection_leaves_no_store_or_all_of_it(step: int, crashes: bool) -> None:
    url = the_server().database("created")
    with proxy(the_server().port) as between:
        between.crash = (lambda: the_server().restart(signal.SIGQUIT)) if crashes else None
        through = url.replace(str(the_server().port), str(between.port))
        for message in itertools.count(step, step):
            the_server().execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION remote_log", "created")
            between.cuts_before = message
            is_refused = False
            try:
                open_metadata_store(through, ManualClock(), busy_timeout_ms=WAIT_MS).close()
            except MetadataUnavailableError:
                is_refused = True
            if crashes and not between.cuts_before:
                assert between.has_crashed.wait(WAIT_MS / 1000), "the server starts again"
                between.has_crashed.clear()
            if is_refused:
                tables = the_server().execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", "created")
                assert {name for (name,) in tables} in (set(), {*metadata.tables, VERSION_TABLE})
            with open_metadata_store(url, ManualClock()) as store:
                assert store.generation.read().is_own_place
            if between.cuts_before:
                break
    assert message > step
