"""Metadata on real PostgreSQL servers in trouble: a standby, a failover to it, and a full tablespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.metadata.metadata_calls import fill
from servers.postgres import PASSWORD, USER, PostgresServer, the_server
from support.clocks import ManualClock
from support.command_line import mentions
from support.examinations import examined
from support.metadata_stores import FINISHED, ORDERS_0, a_segment, a_step, dump
from support.remote_logs import a_remote_log
from support.small_disks import fill as fill_disk
from support.small_disks import make_room, small_disk
from tiered_storage.errors import MetadataUnavailableError, RemoteMetadataError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.database.schema import metadata
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store

ORDERS = Topic("cluster-1", "id", "orders", remote_storage_enable=True)
_DISK_BYTES = 32 << 20
_NOBODY = ",uid=65534,gid=65534,mode=0700"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A standby of a server with a filled store in the database "metadata"."""
    with opened(primary.database("metadata")) as store:
        if not store.topics.list():
            fill(store)
    server = PostgresServer(standby_of=primary)
    yield server
    server.remove()


def opened(url: str, *, create: bool = True) -> SqlMetadataStore:
    return open_metadata_store(url, ManualClock(), create=create, busy_timeout_ms=30_000)


def of_both(standby: PostgresServer, primary: PostgresServer) -> str:
    """Return a URL that leads to whichever of both servers takes writes."""
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (standby, primary))
    login = primary.url("metadata").partition("@")[0]
    return f"{login}@/metadata?{hosts}&target_session_attrs=read-write"


def test_a_standby_is_read_and_refuses_writes(primary: PostgresServer, standby: PostgresServer) -> None:
    with opened(primary.url("metadata")) as store, opened(standby.url("metadata"), create=False) as replica:
        store.topics.put(ORDERS)
        standby.wait_for(primary)

        assert replica.topics.list() == store.topics.list()
        assert replica.segments.partition_states() == store.segments.partition_states()
        assert replica.generation.read() == store.generation.read()
        with pytest.raises(RemoteMetadataError, match="primary") as refused:
            replica.topics.put(ORDERS)
        assert not refused.value.retriable
        assert mentions(str(refused.value), f"127.0.0.1:{standby.port}", "rlmm.config.url")
        with pytest.raises(RemoteMetadataError, match="primary"):
            replica._database.check_writable()


def test_no_store_is_created_on_a_standby(primary: PostgresServer, standby: PostgresServer) -> None:
    primary.database("empty")
    standby.wait_for(primary)
    with pytest.raises(RemoteMetadataError, match="primary"):
        opened(standby.url("empty"))


def test_a_doctor_finds_a_standby_and_its_primary(
    primary: PostgresServer, standby: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    files = a_remote_log(tmp_path / "live")
    found = {}
    for server in (standby, primary):
        url = server.url("metadata", password=None)
        found[server] = examined(replace(files, properties={**files.properties, "rlmm.config.url": url}))

    assert any(mentions(message, "read-only replica", "primary server") for message in found[standby].wrong("metadata"))
    assert not any("replica" in message for message in found[primary].wrong("metadata"))


def test_the_primary_of_two_hosts_is_used(primary: PostgresServer, standby: PostgresServer) -> None:
    with opened(of_both(standby, primary)) as store:
        store.topics.put(ORDERS)
        assert (
            store._database.where == f"postgresql://{USER}@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/metadata"
        )
    with opened(primary.url("metadata")) as store:
        assert store.topics.get("cluster-1", "id") == ORDERS


@pytest.mark.parametrize("is_open", [True, False], ids=["an open store", "a new one"])
def test_a_call_waits_until_a_standby_is_promoted(
    primary: PostgresServer, standby: PostgresServer, is_open: bool
) -> None:
    """The promoted server has these metadata, so no take-over is needed."""
    with opened(of_both(standby, primary)) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        store.generation.claim(7)
        standby.wait_for(primary)
        primary.stop()
        promoting = threading.Timer(0.5, standby.execute, args=("SELECT pg_promote()",))
        promoting.start()
        try:
            if is_open:
                assert store.leases.heartbeat(lease, 60_000).fencing_number == lease.fencing_number
            else:
                with opened(of_both(standby, primary), create=False) as other:
                    assert other.leases.heartbeat(lease, 60_000).fencing_number == lease.fencing_number
            assert store.generation.read().number == 7
            assert store.generation.read().is_own_place
        finally:
            promoting.join()
            primary.start()


def test_a_full_tablespace_is_reported_and_leaves_nothing_half_written() -> None:
    server = the_server()
    with small_disk(server.directory / "tablespace", _DISK_BYTES, _NOBODY) as disk:
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.execute(f"CREATE DATABASE small OWNER {USER} TABLESPACE small STRATEGY file_copy")
        try:
            with opened(server.url("small")) as store:
                fill(store)
                lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
                added = [(a_segment(lease, start, start + 9), lease) for start in range(100, 50_000, 10)]
                steps = [(a_step(segment, FINISHED), lease) for segment, _ in added]
                with store._database.reading() as connection:
                    before = dump(connection, metadata)

                fill_disk(disk)
                for _ in range(2):
                    with pytest.raises(MetadataUnavailableError, match="tablespace") as refused:
                        store.segments.add_remote_log_segments(added)
                    assert refused.value.retriable
                    assert mentions(str(refused.value), f"127.0.0.1:{server.port}/small", "free space")
                with store._database.reading() as connection:
                    assert dump(connection, metadata) == before

                make_room(disk)
                store.segments.add_remote_log_segments(added)
                store.segments.update_remote_log_segments(steps)
                assert store.segments.count_remote_log_segments(ORDERS_0)[FINISHED] == len(added) + 1
                store.check_integrity()
        finally:
            server.execute("DROP DATABASE small")
            server.execute("DROP TABLESPACE small")
