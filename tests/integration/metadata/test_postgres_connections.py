"""Connections to PostgreSQL that are refused or hang: logins in any language, TLS, several hosts, time limits."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from sqlalchemy import Connection, make_url, text

from servers.postgres import PASSWORD, USER, postgres_url, the_server
from servers.postgres_proxy import proxy, refusing_server
from support.clocks import ManualClock
from tiered_storage.errors import MetadataUnavailableError, RemoteMetadataError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.database import postgres_connections
from tiered_storage.remote_log.metadata.sql.database.postgres_database import shown
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store

PATIENT_MS = 600_000
"""A test that waited that long would end by pytest's own limit."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    """A CA, and the file ca.pem."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made


def opened(url: str, busy_timeout_ms: int = PATIENT_MS) -> SqlMetadataStore:
    return open_metadata_store(url, ManualClock(), busy_timeout_ms=busy_timeout_ms)


def with_port(url: str, port: int, options: str = "") -> str:
    return url.replace(f"127.0.0.1:{the_server().port}", f"localhost:{port}") + options


def tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.parametrize(
    ("severity", "message"),
    [
        ("FATAL", "Passwort-Authentifizierung für Benutzer »remote_log« fehlgeschlagen"),
        ("ВАЖНО", 'пользователь "remote_log" не прошёл проверку подлинности (по паролю)'),
        ("FATAL", 'password authentication failed for user "remote_log"'),
    ],
    ids=["German", "Russian", "English"],
)
def test_a_wrong_password_is_known_whatever_language_the_server_has(url: str, severity: str, message: str) -> None:
    with (
        refusing_server("28P01", message, severity) as port,
        pytest.raises(RemoteMetadataError, match="PGPASSWORD") as refused,
    ):
        opened(with_port(url, port))
    assert not refused.value.retriable
    assert message in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("message", "asks_password"),
    [("tut mir leid, schon zu viele Verbindungen", False), ("sorry, too many clients already", True)],
)
def test_a_server_without_room_is_not_taken_for_a_wrong_password(url: str, message: str, asks_password: bool) -> None:
    with (
        refusing_server("53300", message, asks_password=asks_password) as port,
        pytest.raises(MetadataUnavailableError, match=message),
    ):
        opened(with_port(url, port), 0)


def test_a_refusal_by_pg_hba_conf_is_reported(url: str) -> None:
    message = "kein pg_hba.conf-Eintrag für Host »10.0.0.1«, Benutzer »remote_log«, no encryption"
    with (
        refusing_server("28000", message, asks_password=False) as port,
        pytest.raises(RemoteMetadataError, match=r"pg_hba\.conf .*sslmode") as refused,
    ):
        opened(with_port(url, port))
    assert not refused.value.retriable


def test_a_verified_server_is_used_with_tls(url: str, authority: trustme.CA, tmp_path: Path) -> None:
    options = f"?sslmode=verify-full&sslrootcert={tmp_path / 'ca.pem'}"
    with (
        proxy(the_server().port, tls(authority, "localhost")) as encrypting,
        opened(with_port(url, encrypting.port, options)) as store,
    ):
        store.topics.put(Topic("cluster-1", "id", "orders", remote_storage_enable=True))
        with store._database._engine.connect() as connection:
            assert connection.connection.dbapi_connection.pgconn.ssl_in_use  # type: ignore[union-attr]
    with opened(url) as store:
        assert [topic.name for topic in store.topics.list()] == ["orders"]


@pytest.mark.parametrize("wrong", ["CA", "host name", "CA's file"])
def test_a_server_that_cannot_be_verified_is_refused_at_once(
    url: str, authority: trustme.CA, tmp_path: Path, wrong: str
) -> None:
    if wrong == "CA":
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    if wrong == "CA's file":
        (tmp_path / "ca.pem").unlink()
    name = "db.example.com" if wrong == "host name" else "localhost"
    options = f"?sslmode=verify-full&sslrootcert={tmp_path / 'ca.pem'}"
    with (
        proxy(the_server().port, tls(authority, name)) as encrypting,
        pytest.raises(RemoteMetadataError, match="sslmode, sslrootcert") as refused,
    ):
        opened(with_port(url, encrypting.port, options))
    assert not refused.value.retriable
    assert "PGPASSWORD" not in str(refused.value)


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_server_without_tls_is_refused_where_that_is_required(
    url: str, authority: trustme.CA, tmp_path: Path, mode: str
) -> None:
    with pytest.raises(RemoteMetadataError, match=r"SSL.*TLS") as refused:
        opened(f"{url}?sslmode={mode}&sslrootcert={tmp_path / 'ca.pem'}")
    assert not refused.value.retriable


@pytest.mark.parametrize("option", ["sslmode=required", "sslmoed=require", "target_session_attrs=primry"])
def test_an_invalid_option_of_the_url_is_reported_at_once(url: str, option: str) -> None:
    with pytest.raises(RemoteMetadataError, match="option") as refused:
        opened(f"{url}?{option}")
    assert not refused.value.retriable


def test_a_text_that_postgresql_cannot_store_is_refused_at_once(url: str) -> None:
    with opened(url) as store, pytest.raises(RemoteMetadataError, match="NUL") as refused:
        store.topics.put(Topic("cluster-1", "id", "or\0ders"))
    assert not refused.value.retriable


def test_the_reachable_one_of_several_hosts_is_used(url: str) -> None:
    database, port = urlsplit(url).path, the_server().port
    several = f"{url.partition('@')[0]}@{database}?host=127.0.0.1:1&host=127.0.0.1:{port}"
    with opened(several) as store:
        store.topics.put(Topic("cluster-1", "id", "orders", remote_storage_enable=True))
        assert store._database.where == f"postgresql://{USER}@127.0.0.1:1,127.0.0.1:{port}{database}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:hush@/metadata?host=db1:5432&host=db2:5433", "postgresql://me@db1:5432,db2:5433/metadata"),
        ("postgresql://me@/metadata?host=db1,db2&port=1,2", "postgresql://me@db1:1,db2:2/metadata"),
        ("postgresql://me@/metadata?host=db1,db2&port=1", "postgresql://me@db1,db2/metadata"),
        ("postgresql://me@/metadata?host=/var/run/postgresql", "postgresql://me@/var/run/postgresql/metadata"),
        ("postgresql://me:hush@db1:5432/metadata?sslpassword=hush", "postgresql://me@db1:5432/metadata"),
        ("postgresql:///metadata", "postgresql:///metadata"),
    ],
)
def test_a_message_names_every_host_of_a_url(url: str, expected: str) -> None:
    assert shown(make_url(url)) == expected


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    """Stop a process of the server within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def hurried(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store whose server must answer within 0.4 s."""
    monkeypatch.setattr(postgres_connections, "MARGIN_MS", 200)
    opened(url).close()
    return f"{url}?options=-cstatement_timeout%3D200"


@pytest.mark.parametrize(
    ("busy_timeout_ms", "lock", "longest"),
    [(0, "1ms", "1min"), (10_000, "10s", "1min"), (45_000, "45s", "90s"), (PATIENT_MS, "10min", "20min")],
)
def test_a_statement_may_take_a_minute_or_twice_the_wait_for_a_lock(
    url: str, busy_timeout_ms: int, lock: str, longest: str
) -> None:
    """And a transaction may do nothing as long."""
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    with opened(url, busy_timeout_ms) as store, store._database.reading() as connection:
        assert [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names] == [lock, longest, longest]


def backend(connection: Connection) -> int:
    """Return the id of the server's process for `connection`."""
    pid: int = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    return pid


def test_a_server_that_hangs_in_a_transaction_is_given_up_and_writes_nothing(url: str, hurried: str) -> None:
    topic = Topic("cluster-1", "id", "orders", remote_storage_enable=True)
    with opened(hurried, 0) as store:
        with (
            pytest.raises(MetadataUnavailableError, match=r"0\.4") as refused,
            store._database.writing() as connection,
        ):
            connection.execute(text("UPDATE generation SET number = 7"))
            with hanging(backend(connection)):
                connection.execute(text("UPDATE generation SET number = 8"))
        assert refused.value.retriable
    with opened(url) as store:
        store.topics.put(topic)
        assert store.generation.read().number == 0
        assert store.topics.list() == [topic]


def test_a_call_outlasts_a_connection_that_hangs(hurried: str) -> None:
    with opened(hurried) as store:
        with store._database.reading() as connection:
            pid = backend(connection)
        with hanging(pid):
            store.topics.put(Topic("cluster-1", "id", "orders", remote_storage_enable=True))
            with store._database.reading() as connection:
                assert backend(connection) != pid


def test_a_server_that_refuses_every_connection_is_reported(url: str) -> None:
    with hanging(the_server().pid), pytest.raises(MetadataUnavailableError, match="timeout expired") as refused:
        opened(url, 0)
    assert refused.value.retriable


def test_a_transaction_that_copies_everything_may_take_longer(hurried: str) -> None:
    with opened(hurried, 0) as store:
        with store._database.writing() as connection:
            store._database.keep_transaction(connection)
            assert connection.execute(text("SELECT 1 FROM pg_sleep(0.6)")).scalar_one() == 1
        with (
            pytest.raises(MetadataUnavailableError, match="statement_timeout"),
            store._database.reading() as connection,
        ):
            connection.execute(text("SELECT pg_sleep(60)"))
