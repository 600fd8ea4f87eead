"""Metadata continue in PostgreSQL: without a secret in a dump, refused where others are, rebuilt when they are lost."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from scenarios.bound_sites import DELETABLE
from scenarios.postgres.postgres_sites import with_metadata_at
from servers.postgres import PASSWORD, the_server
from support.command_line import run_on
from support.key_rings import ring_of_three
from support.remote_logs import RemoteLogFiles, a_remote_log, assert_clean, copy
from support.shown_secrets import holds, keys_as_text
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store


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


def test_metadata_that_are_lost_are_rebuilt_in_postgres(moved: RemoteLogFiles, url: str) -> None:
    page = Path(__file__).parents[3] / "docs" / "metadata.md"
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
