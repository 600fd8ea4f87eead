"""Backups of metadata in PostgreSQL, and their restores to either database."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from unittest import mock

import pytest
from sqlalchemy import Connection, delete, text

from scenarios.postgres.killed_moves import run_until_compared
from scenarios.postgres.postgres_sites import sqlite_url, tables_of, with_metadata_at
from servers.postgres import postgres_url, the_server
from support.command_line import mentions, run_on
from support.processes import killed
from support.remote_logs import RemoteLogFiles
from tiered_storage.remote_log.metadata.sql.database import moving, postgres_database
from tiered_storage.remote_log.metadata.sql.database.row_copies import copy_rows
from tiered_storage.remote_log.metadata.sql.database.schema import metadata


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
