"""Metadata in a real PostgreSQL server: many processes at once, servers that restart or refuse, and bad input."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from integration.metadata.metadata_calls import READS, WRITES, fill
from integration.metadata.metadata_processes import (
    acquire_at_once,
    acquire_in_turns,
    open_fresh_stores,
    write_segments_at_once,
)
from servers.postgres import (
    PASSWORD,
    PUBLIC_FIRST,
    SUPERUSER,
    SUPERUSER_PASSWORD,
    USER,
    current_setting,
    postgres_url,
    server_crashes_at,
    the_server,
)
from support.clocks import ManualClock
from support.metadata_stores import FINISHED, ORDERS_0, a_segment, a_step
from support.processes import in_processes
from tiered_storage.errors import (
    ConfigurationError,
    LeaseHeldError,
    MetadataCorruptError,
    MetadataMissingError,
    MetadataUnavailableError,
    RemoteMetadataError,
    TieredStorageError,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, is_there, open_metadata_store
from tiered_storage.remote_log.model import TopicIdPartition

_LONG = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
def database(url: str) -> str:
    """The name of the test's database."""
    return url.rpartition("/")[2]


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[SqlMetadataStore]:
    with open_metadata_store(url, clock, busy_timeout_ms=20_000) as opened:
        yield opened


def opened(url: str, **given: Any) -> SqlMetadataStore:
    return open_metadata_store(url, ManualClock(), **{"busy_timeout_ms": 0, **given})


def test_only_one_of_many_processes_creates_a_store(tmp_path: Path) -> None:
    urls = [postgres_url(tmp_path / str(number)) for number in range(3)]

    uuids = in_processes(4, open_fresh_stores, urls)

    assert len({tuple(each) for each in uuids}) == 1, uuids


def test_only_one_of_many_processes_gets_a_lease(url: str, store: SqlMetadataStore) -> None:
    partitions = [TopicIdPartition("cluster-1", "topic-id", number, "orders") for number in range(20)]

    won = in_processes(4, acquire_at_once, url, partitions)

    assert sorted(number for each in won for number in each) == list(range(20))


def test_no_number_of_a_lease_is_given_twice(url: str, store: SqlMetadataStore) -> None:
    given = in_processes(4, acquire_in_turns, url, ORDERS_0, 25)

    assert sorted(number for each in given for number in each) == list(range(1, 101))


def test_processes_that_write_segments_at_once_lose_none_and_a_stale_lease_is_refused(
    url: str, database: str, store: SqlMetadataStore
) -> None:
    own = [TopicIdPartition("cluster-1", "topic-id", number, "orders") for number in range(4)]
    contested = TopicIdPartition("cluster-1", "topic-id", 4, "orders")

    stale, *others = written = in_processes(4, write_segments_at_once, url, own, contested, 20)

    assert "at-200" in stale.last_refusal, "the lease from the beginning is still good"
    assert [each.last_refusal for each in others[1:]] == ["", ""], "nobody else has their leases"
    rows = the_server().execute("SELECT partition, segment_id, finish_sequence FROM segments", database)
    assert sorted(row[:2] for row in rows) == sorted(name for each in written for name in each.added)
    finished = [row for row in rows if row[2] is not None]
    assert sorted(row[:2] for row in finished) == sorted(name for each in written for name in each.finished)
    sequences = [sorted(row[2] for row in finished if row[0] == number) for number in range(5)]
    assert sequences == [list(range(1, len(found) + 1)) for found in sequences]
    assert [len(found) for found in sequences[:4]] == [20] * 4
    assert sequences[4], "no lease of the contested partition held for one segment"


def test_threads_may_decide_on_topics_at_once(store: SqlMetadataStore) -> None:
    """The digest of all decisions holds for what was committed before, in other connections too."""

    def decide(number: int) -> None:
        for step in range(10):
            topic = Topic("cluster-1", f"id-{number}", f"topic-{number}", remote_storage_enable=bool(step % 2))
            store.topics.put(topic)

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(store.topics.list()) == 4
    store.generation.renew()
    assert store.generation.read().has_own_decisions


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
def test_a_call_succeeds_after_a_restart_of_the_server(store: SqlMetadataStore, how: signal.Signals) -> None:
    before = store.leases.acquire(ORDERS_0, "run-1", _LONG)

    the_server().restart(how)

    assert store.leases.heartbeat(before, _LONG).fencing_number == 1
    the_server().restart(how)
    assert store.segments.list_partitions() == []


def test_a_call_waits_for_a_server_that_starts_meanwhile(store: SqlMetadataStore) -> None:
    store.leases.acquire(ORDERS_0, "run-1", _LONG)
    the_server().stop()
    starting = threading.Timer(0.5, the_server().start)
    starting.start()
    try:
        assert store.leases.fencing_number(ORDERS_0) == 1
    finally:
        starting.join()


@pytest.mark.parametrize("name", ["leases.acquire", "segments.partition_states"])
def test_a_server_that_crashes_in_the_middle_of_a_call_leaves_all_of_it_or_nothing(
    store: SqlMetadataStore, name: str
) -> None:
    """Lost at its beginning, the transaction begins again; later, the error is retriable, and a repeat succeeds.

    test_postgres_calls.py has all calls, with connections that are lost, and nightly with servers that crash.
    """
    filled, call = fill(store), {**READS, **WRITES}[name]
    outcomes = []
    for message in range(1, 30):
        with server_crashes_at(store, message) as crashed:
            try:
                call(store, filled)
                outcomes.append("done")
            except MetadataUnavailableError:
                outcomes.append("refused")
        call(store, filled)
        if not crashed():
            break
    assert outcomes[0] == outcomes[-1] == "done"
    assert outcomes[1:-1] == ["refused"] * (len(outcomes) - 2) != []


@pytest.mark.parametrize("message", [2, 4, 6])
def test_a_commit_of_many_segments_whose_server_crashes_can_be_repeated(store: SqlMetadataStore, message: int) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", _LONG)
    segments = [a_segment(lease, start, start + 9) for start in range(0, 25_000, 10)]
    steps = [(a_step(segment, FINISHED), lease) for segment in segments]

    def commit() -> None:
        store.segments.add_remote_log_segments([(segment, lease) for segment in segments])
        store.segments.update_remote_log_segments(steps)

    with server_crashes_at(store, message), pytest.raises(MetadataUnavailableError):
        commit()
    commit()

    found = list(store.segments.list_remote_log_segments(ORDERS_0))
    assert len(found) == 2500
    assert {segment.state for segment in found} == {FINISHED}
    assert [segment.start_offset for segment in found] == list(range(0, 25_000, 10))


def test_a_writer_that_hangs_is_reported_after_the_busy_timeout(url: str, store: SqlMetadataStore) -> None:
    with opened(url, busy_timeout_ms=100) as other, store._database.writing():
        with pytest.raises(MetadataUnavailableError, match="100 ms") as refused:
            other.leases.acquire(ORDERS_0, "run-1", _LONG)
        assert refused.value.retriable
        assert other.segments.list_partitions() == [], "readers do not wait"


def test_a_statement_that_takes_too_long_is_cancelled(url: str, store: SqlMetadataStore) -> None:
    with opened(f"{url}?options=-cstatement_timeout%3D100") as hurried:
        with pytest.raises(MetadataUnavailableError, match="statement_timeout"), hurried._database.reading() as reading:
            reading.execute(text("SELECT pg_sleep(10)"))
        assert hurried.identity.metadata_uuid == store.identity.metadata_uuid


def test_a_deadlock_with_somebody_elses_statements_is_retriable(url: str, store: SqlMetadataStore) -> None:
    store.leases.acquire(ORDERS_0, "run-1", _LONG)
    login = url.replace(url.partition("://")[2].partition("@")[0], f"{SUPERUSER}:{SUPERUSER_PASSWORD}")
    with psycopg.connect(login, options="-c deadlock_timeout=60s") as session:
        session.execute("LOCK TABLE leases")
        other = threading.Thread(target=lambda: session.execute("LOCK TABLE topics"))
        with (
            pytest.raises(MetadataUnavailableError, match="another transaction") as refused,
            store._database.writing() as connection,
        ):
            connection.execute(text("LOCK TABLE topics"))
            other.start()
            connection.execute(text("LOCK TABLE leases"))
        other.join()
    assert refused.value.retriable


def test_a_wrong_password_is_reported_at_once_and_never_shown(
    tmp_path: Path, database: str, store: SqlMetadataStore
) -> None:
    wrong = the_server().url(database, password="another:p@ssword")
    for look in (lambda: opened(wrong, busy_timeout_ms=60_000), lambda: is_there(wrong)):
        with pytest.raises(RemoteMetadataError, match="PGPASSWORD") as refused:
            look()
        assert not refused.value.retriable
        assert "p@ss" not in f"{refused.value}{refused.value.__cause__}"


def test_the_password_may_be_in_the_environment(
    database: str, store: SqlMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)

    with opened(the_server().url(database, password=None)) as other:
        assert other.identity.metadata_uuid == store.identity.metadata_uuid
        assert repr(other._database._engine.url).count(PASSWORD) == 0


def test_a_server_that_is_not_there_is_reported_with_its_address(clock: ManualClock) -> None:
    url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/metadata".replace(PASSWORD, "hush")
    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1/metadata") as refused:
        opened(url)
    assert refused.value.retriable
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("statement", "advice", "kind", "retriable"),
    [
        ("ALTER DATABASE {database} SET default_transaction_read_only = on", "primary", RemoteMetadataError, False),
        ("REVOKE INSERT, UPDATE ON ALL TABLES IN SCHEMA public FROM " + USER, "grant", RemoteMetadataError, False),
        ("DROP TABLE leases", "search_path", MetadataCorruptError, False),
        ("ALTER DATABASE {database} CONNECTION LIMIT 0", "max_connections", MetadataUnavailableError, True),
        ("UPDATE remote_log_schema_version SET version_num = '9999'", "upgrade", MetadataCorruptError, False),
    ],
    ids=["read-only", "rights", "table", "connections", "later"],
)
def test_an_error_of_the_database_is_reported_with_its_remedy(
    url: str, database: str, statement: str, advice: str, kind: type[TieredStorageError], retriable: bool
) -> None:
    opened(url).close()
    the_server().execute(statement.format(database=database), database)

    with pytest.raises(kind, match=advice) as refused, opened(url) as store:
        store.leases.acquire(ORDERS_0, "run-1", _LONG)

    assert refused.value.retriable is retriable
    assert "127.0.0.1" in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_a_database_without_metadata_is_reported_and_left_as_it_is(url: str, database: str) -> None:
    assert not is_there(url)
    with pytest.raises(MetadataMissingError, match=r"rlmm\.config\.url"):
        opened(url, create=False)
    assert the_server().execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database) == [(0,)]

    opened(url).close()
    assert is_there(url)


def test_a_missing_database_is_reported(url: str) -> None:
    with pytest.raises(RemoteMetadataError, match="create the database"):
        opened(f"{url}_of_nobody", busy_timeout_ms=60_000)


def test_a_database_of_another_encoding_is_refused(tmp_path: Path) -> None:
    the_server().execute(f"CREATE DATABASE latin OWNER {USER} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigurationError, match="UTF8"):
        opened(the_server().url("latin"))


def test_a_server_that_is_too_old_is_refused(url: str, database: str) -> None:
    the_server().execute(current_setting("server_version_num", "120022"), database)
    with pytest.raises(ConfigurationError, match=r"PostgreSQL 12: .*\b13 "):
        opened(f"{url}?{PUBLIC_FIRST}")
    assert not is_there(url)


@pytest.mark.parametrize(
    "url", ["postgresql://", "postgresql://host", "postgresql+asyncpg://host/metadata", "postgres://host/metadata"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://user@host:5432/database"):
        opened(url)


def test_two_schemas_of_one_database_hold_two_stores(url: str, database: str, store: SqlMetadataStore) -> None:
    the_server().execute(f"CREATE SCHEMA other AUTHORIZATION {USER}", database)

    with opened(f"{url}?options=-csearch_path%3Dother", busy_timeout_ms=100) as other, store._database.writing():
        assert other.identity.metadata_uuid != store.identity.metadata_uuid
        assert other.generation.read().is_own_place
        other.leases.acquire(ORDERS_0, "another lock", _LONG)


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_transaction_that_the_server_cannot_serialize_is_retriable(
    url: str, database: str, store: SqlMetadataStore, sqlstate: str
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", _LONG)
    the_server().execute(
        f"""
        CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '{sqlstate}'; END $$;
        CREATE TRIGGER conflict AFTER INSERT ON segments FOR EACH ROW EXECUTE FUNCTION conflict()
        """,
        database,
    )
    segment = a_segment(lease)
    with pytest.raises(MetadataUnavailableError, match="conflicted") as refused:
        store.segments.add_remote_log_segment_metadata(segment, lease)
    assert refused.value.retriable
    assert store.segments.list_partitions() == []

    the_server().execute("DROP TRIGGER conflict ON segments", database)
    store.segments.add_remote_log_segment_metadata(segment, lease)
    assert store.segments.segment_by_id(segment.segment_id) == segment


def test_texts_sort_by_their_bytes(url: str, store: SqlMetadataStore) -> None:
    """Digests of decisions and pages of rows depend on it."""
    with store._database.reading() as connection:
        found = connection.execute(
            text(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' AND "
                "column_name IN ('cluster_id', 'topic_id', 'segment_id', 'name') AND collation_name <> 'C'"
            )
        ).all()
    assert found == []


def test_a_restored_dump_is_another_place(url: str, database: str, store: SqlMetadataStore) -> None:
    store.generation.claim(7)
    assert store.generation.read().is_own_place
    store.close()

    the_server().dump_and_restore(database, f"{database}_restored")

    with opened(f"{url}_restored") as restored:
        assert restored.generation.read().number == 7
        assert not restored.generation.read().is_own_place
    the_server().dump_and_restore(database, database)
    with opened(url) as restored:
        assert not restored.generation.read().is_own_place


def test_a_held_lease_is_refused_on_another_connection(url: str, store: SqlMetadataStore) -> None:
    store.leases.acquire(ORDERS_0, "run-1", _LONG)
    with opened(url) as other, pytest.raises(LeaseHeldError, match="run-1"):
        other.leases.acquire(ORDERS_0, "run-2", _LONG)


def test_an_error_within_a_transaction_of_another_database_names_its_own(
    url: str, database: str, store: SqlMetadataStore, tmp_path: Path
) -> None:
    """As in a move, where one is read while the other is written."""
    with (
        opened(postgres_url(tmp_path / "other")) as other,
        pytest.raises(RemoteMetadataError, match=f"/{database}: division by zero"),
        store._database.reading() as connection,
        other._database.writing(),
    ):
        connection.execute(text("SELECT 1/0"))
