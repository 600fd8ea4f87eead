"""Metadata in PostgreSQL, as people have them: moved there and back, backed up, restored, rebuilt, and copied."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, delete, text

from scenarios.postgres.killed_moves import move_until, move_until_point, run_until_compared
from servers.postgres import PASSWORD, PUBLIC_FIRST, current_setting, postgres_url, the_server
from support.command_line import mentions, run_on
from support.examinations import examined
from support.key_rings import ring_of_three
from support.metadata_stores import dump
from support.processes import killed
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, a_remote_log, assert_clean, copy
from support.shown_secrets import holds, keys_as_text
from tiered_storage.clock import wall_clock
from tiered_storage.errors import MetadataMissingError, RemoteMetadataError, TieredStorageError
from tiered_storage.remote_log.metadata.sql.database import moving, postgres_database
from tiered_storage.remote_log.metadata.sql.database.moving import move_metadata
from tiered_storage.remote_log.metadata.sql.database.postgres_database import PostgresDatabase
from tiered_storage.remote_log.metadata.sql.database.row_copies import copy_rows
from tiered_storage.remote_log.metadata.sql.database.schema import metadata
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store

URL = "rlmm.config.url"
DELETABLE = {**ENABLED, "retention.bytes": 1000, "local.retention.bytes": 0}


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty database, as a settings file may have it: without a password."""
    return the_server().url(postgres_url(tmp_path).rpartition("/")[2], password=None)


@pytest.fixture
def own_database(url: str) -> str:
    """The name of its database."""
    return url.rpartition("/")[2]


def tables_of(database: str) -> list[tuple[Any, ...]]:
    return the_server().execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)


@pytest.fixture
def site(tmp_path: Path) -> RemoteLogFiles:
    """A remote log with its metadata in SQLite, bound to its store."""
    files = a_copied_remote_log(tmp_path / "live", {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files


def with_metadata_at(files: RemoteLogFiles, url: str) -> RemoteLogFiles:
    return replace(files, properties={**files.properties, URL: url})


def sqlite_url(files: RemoteLogFiles, name: str = "remote_log_metadata.db") -> str:
    return f"sqlite:///{files.root / 'state' / name}"


@pytest.fixture
def moved(site: RemoteLogFiles, url: str) -> RemoteLogFiles:
    """The same with its metadata in PostgreSQL."""
    assert run_on(site, "metadata", "move", url).exit_code == 0
    return with_metadata_at(site, url)


def test_all_of_it_continues_in_postgres(tmp_path: Path, url: str) -> None:
    files = with_metadata_at(a_remote_log(tmp_path / "live", topics={"orders": DELETABLE}), url)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert_clean(remote_log)
    for command in (("audit",), ("retain",), ("expire",), ("segments",), ("topics", "list")):
        done = run_on(files, *command)
        assert done.exit_code == 0, done
    assert files.local_starts() != [0, 10, 20, 30]
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_dump_of_metadata_in_postgres_holds_no_secret(tmp_path: Path, url: str) -> None:
    topics = {"orders": {**DELETABLE, "remote.encryption.enabled": True}}
    site = a_remote_log(
        tmp_path / "live",
        topics=topics,
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="third",
    )
    files = with_metadata_at(site, url)
    for command in (("copy",), ("audit", "--deep"), ("retain",), ("expire",)):
        assert run_on(files, *command).exit_code == 0
    assert len(files.objects(".key")) > 0

    dumped = the_server().dump(url.rpartition("/")[2])

    assert b"COPY public.segments" in dumped
    forms = (PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""))
    assert not holds(dumped, [*(form.encode() for form in forms), *keys_as_text(tmp_path / "keys")])


def test_metadata_move_to_postgres_and_back(site: RemoteLogFiles, url: str) -> None:
    before = run_on(site, "segments", "--json").rows

    done = run_on(site, "metadata", "move", url)

    assert done.exit_code == 0, done
    assert url in done.err
    moved = with_metadata_at(site, url)
    assert run_on(moved, "segments", "--json").rows == before
    with moved.open() as remote_log:
        assert_clean(remote_log)
    assert run_on(moved, "topics", "pause", "orders").exit_code == 0
    assert run_on(moved, "expire").exit_code == 0
    refused = run_on(site, "segments")
    assert refused.exit_code == 1
    assert f"moved to {url}" in refused.err

    assert run_on(moved, "metadata", "move", sqlite_url(site)).exit_code == 0

    assert run_on(site, "topics", "list", "--json").rows[0]["topic"] == "orders"
    assert run_on(site, "audit").exit_code == 0
    assert "moved to" in run_on(moved, "segments").err


def places(site: RemoteLogFiles, tmp_path: Path, first: str) -> Iterator[str]:
    """Yield URLs of databases without metadata, in turns a SQLite file and a PostgreSQL database."""
    kinds = ("sqlite", "postgresql") if first == "sqlite" else ("postgresql", "sqlite")
    for number, kind in enumerate(cycle(kinds)):
        yield sqlite_url(site, f"{number}.db") if kind == "sqlite" else postgres_url(tmp_path / str(number))


@pytest.mark.parametrize("first", ["postgresql", "sqlite"])
def test_a_move_that_breaks_off_anywhere_leaves_one_place_in_use_and_can_be_repeated(
    site: RemoteLogFiles, tmp_path: Path, first: str
) -> None:
    """Each step breaks off on the way to PostgreSQL and on the way back."""
    source = site.settings().rlmm_config_url.get_secret_value()
    targets = places(site, tmp_path, first)
    steps = ("copy_rows", "ensure_same_rows", "_settle", "_ensure_free", "_ensure_of")
    for step, target in zip(steps, targets, strict=False):
        with mock.patch.object(moving, step, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            move_metadata(source, target, site.clock, 1000, lambda _: None)
        ensure_moves_after_all(site, source, target, [] if step == "_settle" else [source])
        source = target
    with with_metadata_at(site, source.replace(f":{quote(PASSWORD, safe='')}@", "@")).open() as remote_log:
        assert_clean(remote_log)


def ensure_moves_after_all(site: RemoteLogFiles, source: str, target: str, usable: list[str]) -> None:
    """Ensure that after a move that broke off, those of both that are `usable` are, and that the next move succeeds."""
    assert [url for url in (source, target) if opens(site, url)] == usable

    assert move_metadata(source, target, site.clock, 10_000, lambda _: None)
    assert move_metadata(source, target, site.clock, 10_000, lambda _: None), "once more does nothing"

    assert [url for url in (source, target) if opens(site, url)] == [target]


@pytest.mark.parametrize("step", ["ensure_same_rows", "_settle"])
def test_a_move_whose_process_is_killed_can_be_repeated(site: RemoteLogFiles, tmp_path: Path, step: str) -> None:
    source = site.settings().rlmm_config_url.get_secret_value()
    for target in islice(places(site, tmp_path, "postgresql"), 2):
        assert killed(move_until, step, source, target) == -signal.SIGKILL
        ensure_moves_after_all(site, source, target, [] if step == "_settle" else [source])
        source = target
    with with_metadata_at(site, source).open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", ["postgresql", "sqlite"])
def test_a_move_whose_process_is_killed_around_any_commit_can_be_repeated(
    site: RemoteLogFiles, tmp_path: Path, first: str
) -> None:
    """At every other point on the way to PostgreSQL, and at those between them on the way back."""
    source = site.settings().rlmm_config_url.get_secret_value()
    for number, target in enumerate(places(site, tmp_path, first), 1):
        ended = killed(move_until_point, number, source, target)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        usable = [url for url in (source, target) if opens(site, url)]
        assert usable in ([source], [], [target]), (number, usable)
        ensure_moves_after_all(site, source, target, usable)
        source = target
    assert number > 20
    assert [url for url in (source, target) if opens(site, url)] == [target]
    with with_metadata_at(site, target.replace(f":{quote(PASSWORD, safe='')}@", "@")).open() as remote_log:
        assert_clean(remote_log)


def test_a_row_that_another_one_replaces_at_the_target_ends_the_move(
    site: RemoteLogFiles, moved: RemoteLogFiles, tmp_path: Path
) -> None:
    """The source stays in use, as it was."""
    source, target = moved.properties[URL], postgres_url(tmp_path / "target")
    with mock.patch.object(moving, "copy_rows", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        move_metadata(str(source), target, site.clock, 1000, lambda _: None)
    database = target.rpartition("/")[2]
    the_server().execute(
        """
        CREATE FUNCTION alter_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.end_offset := NEW.end_offset + (NEW.start_offset = 10)::int; RETURN NEW; END $$;
        CREATE TRIGGER alter_row BEFORE INSERT ON segments FOR EACH ROW EXECUTE FUNCTION alter_row()
        """,
        database,
    )
    before = rows_at(str(source))

    with pytest.raises(RemoteMetadataError, match=r"segments .*segment_id "):
        move_metadata(str(source), target, site.clock, 1000, lambda _: None)

    assert rows_at(str(source)) == before
    assert [url for url in (source, target) if opens(site, str(url))] == [source]
    assert run_on(moved, "topics", "pause", "orders").exit_code == 0
    the_server().execute("DROP TRIGGER alter_row ON segments", database)
    ensure_moves_after_all(site, str(source), target, [str(source)])


def rows_at(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with PostgresDatabase(url, 1000) as opened, opened.reading() as connection:
        return dump(connection, metadata)


def opens(files: RemoteLogFiles, url: str) -> bool:
    try:
        open_metadata_store(url, files.clock, create=False).close()
    except MetadataMissingError:
        return False
    return True


def test_a_process_that_still_has_the_old_metadata_open_writes_nothing_there(site: RemoteLogFiles, url: str) -> None:
    with site.open() as remote_log:
        move_metadata(site.settings().rlmm_config_url.get_secret_value(), url, site.clock, 1000, lambda _: None)

        with pytest.raises(MetadataMissingError, match="moved to"):
            copy(remote_log)


def test_nothing_moves_while_somebody_works(site: RemoteLogFiles, url: str) -> None:
    with site.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        remote_log.context.leases.acquire(partition, "a copy run", 60_000)

        refused = run_on(site, "metadata", "move", url)

    assert refused.exit_code == 1
    assert "a copy run" in refused.err
    assert run_on(site, "segments").exit_code == 0


@pytest.mark.parametrize("is_used", [False, True])
def test_other_metadata_are_never_overwritten(site: RemoteLogFiles, url: str, is_used: bool) -> None:
    with open_metadata_store(url, site.clock) as other:
        uuid = other.identity.metadata_uuid
    backup = site.root / "backup.db"
    assert run_on(site, "metadata", "backup", backup).exit_code == 0

    refused = [
        run_on(site, "metadata", "move", url),
        run_on(with_metadata_at(site, url), "metadata", "restore", backup),
        run_on(with_metadata_at(site, url), "rebuild-metadata", "--yes"),
    ]

    assert [done.exit_code for done in refused] == [1, 1, 1]
    with open_metadata_store(url, site.clock) as other:
        assert other.identity.metadata_uuid == uuid
    assert run_on(site, "segments").exit_code == 0


def test_no_password_is_accepted_as_an_argument_or_in_the_file(site: RemoteLogFiles, url: str) -> None:
    with_password = url.replace("remote_log@", "remote_log:hush@")
    refused = run_on(site, "metadata", "move", with_password)
    assert refused.exit_code == 1
    assert "PGPASSWORD" in refused.err
    in_file = run_on(with_metadata_at(site, with_password), "segments")
    assert in_file.exit_code == 1
    assert "settings.yaml, line" in in_file.err
    assert "hush" not in refused.err + in_file.err + in_file.out


def test_a_copy_of_metadata_that_moves_stays_a_copy(site: RemoteLogFiles, moved: RemoteLogFiles, url: str) -> None:
    database = url.rpartition("/")[2]
    the_server().dump_and_restore(database, f"{database}_copy")
    copied = with_metadata_at(site, f"{url}_copy")
    assert mentions(run_on(copied, "expire").err, f"{database}_copy", "copy of the metadata")

    assert run_on(copied, "metadata", "move", sqlite_url(site, "elsewhere.db")).exit_code == 0

    elsewhere = with_metadata_at(site, sqlite_url(site, "elsewhere.db"))
    assert mentions(run_on(elsewhere, "expire").err, "elsewhere.db", "copy of the metadata")
    assert run_on(moved, "expire").exit_code == 0


def test_an_older_dump_that_is_restored_changes_nothing(moved: RemoteLogFiles, url: str) -> None:
    database = url.rpartition("/")[2]
    the_server().dump_and_restore(database, f"{database}_yesterday")
    assert run_on(moved, "topics", "forbid-deletion", "orders").exit_code == 0

    the_server().dump_and_restore(f"{database}_yesterday", database)

    for command in (("expire",), ("copy",), ("topics", "allow-deletion", "orders")):
        refused = run_on(moved, *command)
        assert refused.exit_code == 1, refused
        assert "older than the store" in refused.err
    assert run_on(moved, "metadata", "take-over", "--yes").exit_code == 0
    assert run_on(moved, "expire").exit_code == 0


def test_a_backup_of_postgres_is_a_file_that_either_database_takes(
    moved: RemoteLogFiles, site: RemoteLogFiles, tmp_path: Path
) -> None:
    backup = moved.root / "backup.db"
    before = run_on(moved, "segments", "--json").rows

    done = run_on(moved, "metadata", "backup", backup, "--json")

    assert done.exit_code == 0, done
    assert done.rows[0]["is_current"] is True
    assert backup.stat().st_mode & 0o077 == 0
    assert run_on(moved, "metadata", "backup", backup).exit_code == 1, "it is there already"
    other = the_server().url(postgres_url(tmp_path / "other").rpartition("/")[2], password=None)
    for place in (other, sqlite_url(site, "restored.db")):
        restored = with_metadata_at(site, place)
        assert run_on(restored, "metadata", "restore", backup).exit_code == 0
        assert run_on(restored, "segments", "--json").rows == before
        assert mentions(run_on(restored, "expire").err, "copy of the metadata", "metadata take-over")
    assert run_on(moved, "expire").exit_code == 0


def test_a_row_that_another_one_replaces_at_the_target_ends_the_restore(
    site: RemoteLogFiles, url: str, own_database: str
) -> None:
    """The next one is whole: nothing of the first one stays."""
    backup, restored = site.root / "backup.db", with_metadata_at(site, url)
    assert run_on(site, "metadata", "backup", backup).exit_code == 0
    before = run_on(site, "segments", "--json").rows
    the_server().execute(
        """
        CREATE FUNCTION alter_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.end_offset := NEW.end_offset + (NEW.start_offset = 10)::int; RETURN NEW; END $$;
        CREATE FUNCTION alter_rows() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        IF to_regclass('public.segments') IS NOT NULL THEN
        CREATE OR REPLACE TRIGGER alter_row BEFORE INSERT ON segments FOR EACH ROW EXECUTE FUNCTION alter_row();
        END IF; END $$;
        CREATE EVENT TRIGGER alter_rows ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION alter_rows()
        """,
        own_database,
    )

    refused = run_on(restored, "metadata", "restore", backup)

    assert refused.exit_code == 1
    assert re.search(r"table segments .*segment_id", refused.err), refused
    assert tables_of(own_database) == []
    the_server().execute("DROP EVENT TRIGGER alter_rows", own_database)
    assert run_on(restored, "metadata", "restore", backup).exit_code == 0
    assert run_on(restored, "segments", "--json").rows == before


def test_a_row_that_a_backup_lacks_ends_it(moved: RemoteLogFiles) -> None:
    """No file is left that somebody could restore; the next one is whole."""
    backup = moved.root / "backup.db"

    def copied_but_one(source: Connection, target: Connection) -> None:
        copy_rows(source, target)
        target.execute(delete(metadata.tables["segments"]).where(text("start_offset = 10")))

    with mock.patch.object(postgres_database, "copy_rows", copied_but_one):
        refused = run_on(moved, "metadata", "backup", backup)

    assert refused.exit_code == 1
    assert re.search(r"table segments .*segment_id", refused.err), refused
    assert list(moved.root.glob("*backup*")) == []
    assert run_on(moved, "metadata", "backup", backup).exit_code == 0


def test_a_backup_and_a_restore_whose_process_is_killed_can_be_repeated(
    moved: RemoteLogFiles, site: RemoteLogFiles, tmp_path: Path
) -> None:
    """Each is killed when all rows are copied and none is compared."""
    backup, other = moved.root / "backup.db", postgres_url(tmp_path / "other").rpartition("/")[2]
    restored = with_metadata_at(site, the_server().url(other, password=None))
    before = run_on(moved, "segments", "--json").rows

    writes = ("metadata", "backup", str(backup), "--config", str(moved.config))
    assert killed(run_until_compared, postgres_database.__name__, *writes) == -signal.SIGKILL
    assert not backup.exists()
    assert run_on(moved, "metadata", "backup", backup).exit_code == 0

    restored.settings()
    reads = ("metadata", "restore", str(backup), "--config", str(restored.config))
    assert killed(run_until_compared, moving.__name__, *reads) == -signal.SIGKILL
    assert tables_of(other) == []
    assert run_on(restored, "metadata", "restore", backup).exit_code == 0
    assert run_on(restored, "segments", "--json").rows == before


@pytest.mark.parametrize("what", ["no database", "missing", "damaged"])
def test_a_file_that_is_no_backup_is_not_restored_to_postgres(site: RemoteLogFiles, url: str, what: str) -> None:
    backup = site.root / "backup.db"
    if what == "damaged":
        assert run_on(site, "metadata", "backup", backup).exit_code == 0
        content = bytearray(backup.read_bytes())
        content[4096:20_000] = bytes(20_000 - 4096)
        backup.write_bytes(content)
    elif what == "no database":
        backup.write_bytes(b"no database" * 1000)

    refused = run_on(with_metadata_at(site, url), "metadata", "restore", backup)

    assert refused.exit_code == 1, refused
    assert "Traceback" not in refused.err
    assert the_server().execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", url[-25:]) == [(0,)]


def test_metadata_that_are_lost_are_rebuilt_in_postgres(moved: RemoteLogFiles, url: str) -> None:
    page = Path(__file__).parents[3] / "docs" / "metadata-stores.md"
    _, put_aside = re.findall(r"```sql\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    the_server().execute(put_aside, url[-25:])
    refused = run_on(moved, "expire")
    assert "rebuild-metadata" in refused.err

    done = run_on(moved, "rebuild-metadata", "--yes")

    assert done.exit_code == 0, done
    with moved.open() as remote_log:
        assert_clean(remote_log)
    assert run_on(moved, "topics", "allow-deletion", "orders").exit_code == 0
    assert run_on(moved, "expire").exit_code == 0


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
