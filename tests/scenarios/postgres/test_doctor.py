"""Messages of doctor and every command about a faulty server or database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from scenarios.postgres.postgres_sites import with_metadata_at
from servers.postgres import PUBLIC_FIRST, current_setting, the_server
from support.command_line import mentions, run_on
from support.examinations import examined
from support.remote_logs import RemoteLogFiles, a_remote_log
from tiered_storage.clock import wall_clock
from tiered_storage.errors import TieredStorageError


@pytest.fixture
def _server_is_back() -> Iterator[None]:
    yield
    the_server().restart()


@pytest.mark.usefixtures("_server_is_back")
def test_commands_tell_a_server_that_is_away(moved: RemoteLogFiles) -> None:
    away = replace(moved, properties={**moved.properties, "metadata.busy.timeout.ms": 0})
    the_server().stop()

    for command in (("copy",), ("metadata", "backup", moved.root / "backup.db")):
        refused = run_on(away, *command)
        assert refused.exit_code == 1
        assert "127.0.0.1" in refused.err
        assert "Traceback" not in refused.err
    assert examined(away).wrong("metadata")


def test_a_password_that_is_wrong_is_an_error_of_every_command(
    moved: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    for command in (("segments",), ("stop-deletions",)):
        refused = run_on(moved, *command)
        assert refused.exit_code == 1
        assert "PGPASSWORD" in refused.err
    with pytest.raises(TieredStorageError, match="PGPASSWORD"), moved.open():
        pass


@pytest.mark.usefixtures("_server_is_back")
def test_a_doctor_finds_sound_metadata_sound(moved: RemoteLogFiles) -> None:
    the_server().restart(fsync="on")

    found = examined(moved)

    assert found.wrong("metadata") == []
    assert any("PostgreSQL" in message for message in found.ok("metadata"))
    assert any("clock" in message for message in found.ok("metadata"))
    assert any("UUID" in message for message in found.ok("pair"))


def test_doctor_reports_missing_metadata_and_creates_none(tmp_path: Path, url: str) -> None:
    files = with_metadata_at(a_remote_log(tmp_path / "live"), url)

    assert any("does not exist yet" in message for message in examined(files).notes("metadata"))

    assert the_server().execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", url[-25:]) == [(0,)]


def test_a_doctor_finds_that_the_user_may_not_create_the_tables(tmp_path: Path, url: str) -> None:
    files = with_metadata_at(a_remote_log(tmp_path / "live"), url)
    lacking = "this user lacks rights: CREATE in the first schema of search_path"
    assert not any(lacking in message for message in examined(files).wrong("metadata"))

    the_server().execute("ALTER SCHEMA public OWNER TO CURRENT_USER", url.rpartition("/")[2])

    assert any(lacking in message for message in examined(files).wrong("metadata"))
    refused = run_on(files, "topics", "enable", "orders")
    assert refused.exit_code == 1 and mentions(refused.err, "own the schema"), refused


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("REVOKE DELETE ON segments FROM remote_log", "DELETE on segments"),
        ("ALTER DATABASE {database} SET default_transaction_read_only = on", "read-only"),
        ("ALTER DATABASE {database} SET synchronous_commit = off", "a crash may lose"),
        ("UPDATE remote_log_schema_version SET version_num = '9999'", "upgrade"),
        ("UPDATE store_identity SET moved_to = 'elsewhere'", "moved to elsewhere"),
    ],
)
def test_a_doctor_finds_what_is_wrong_with_a_database(
    moved: RemoteLogFiles, url: str, statement: str, expected: str
) -> None:
    database = url.rpartition("/")[2]
    the_server().execute(statement.format(database=database), database)

    assert any(expected in each for each in examined(moved).wrong("metadata")), examined(moved).wrong()


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("server_version_num", "120022", "use PostgreSQL 13 or later"),
        ("server_encoding", "LATIN1", "has encoding LATIN1 | create one with encoding UTF8"),
    ],
)
def test_a_doctor_finds_a_server_that_cannot_hold_metadata(
    moved: RemoteLogFiles, url: str, setting: str, value: str, expected: str
) -> None:
    the_server().execute(current_setting(setting, value), url.rpartition("/")[2])
    found = examined(with_metadata_at(moved, f"{url}?{PUBLIC_FIRST}"))
    assert any(expected in each for each in found.wrong("metadata")), found.wrong()


def test_a_doctor_finds_time_outs_that_are_off_and_a_wrong_clock(moved: RemoteLogFiles, url: str) -> None:
    off = with_metadata_at(moved, f"{url}?options=-cstatement_timeout%3D0")
    assert any("statement_timeout" in message for message in examined(off).wrong("metadata"))
    with mock.patch("support.examinations.wall_clock", lambda: wall_clock() + 3_600_000):
        assert any("clock.max.skew.ms" in message for message in examined(moved).wrong("metadata"))
