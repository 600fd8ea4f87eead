"""Only its owner reads our state, whatever the umask says, also what is made later; a shared store stays shared."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import run_on
from support.remote_logs import (
    ENABLED,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    copy,
    unsynced,
)
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.restore.offset_map import MapHead, OffsetMapWriter

DELETABLE = {**ENABLED, "retention.bytes": 2000, "local.retention.bytes": 1000}


@pytest.fixture(autouse=True)
def _wide_umask() -> Iterator[None]:
    """Let a new file be readable for all, unless whoever makes it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(root: Path) -> dict[str, str]:
    """Return what in `root` anybody but its owner may use, with its rights."""
    found = [root, *root.rglob("*")]
    return {str(path.relative_to(root)): oct(rights(path)) for path in found if rights(path) & 0o077}


def lives_on(files: RemoteLogFiles) -> None:
    """Let everything that writes below the state directory write there."""
    with unsynced():
        for arguments in (("copy",), ("stop-deletions",), ("stop-deletions", "--lift"), ("retain",), ("expire",)):
            assert run_on(files, *arguments).exit_code == 0
    with files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()):
        assert_clean(remote_log)


def test_everything_that_is_made_below_a_missing_state_directory_is_private(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": DELETABLE}, remote_log_reader_cache_disk_bytes=1 << 20)
    state = tmp_path / "state"
    state.rename(tmp_path / "put away")

    lives_on(files)
    with files.open() as remote_log:
        reader = remote_log.open_log_reader()
        assert open_to_others(state) == {}
        reader.close()
    files.append(4)
    lives_on(files)

    assert {"remote", "work", "chunk-cache", "remote_log_metadata.db"} <= {path.name for path in state.iterdir()}
    assert open_to_others(state) == {}


def test_metadata_are_private_with_the_files_that_sqlite_puts_beside_them(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o755)
    files = a_remote_log(tmp_path, rlmm_config_url=f"sqlite:///{tmp_path}/elsewhere/new/metadata.db")

    with files.open() as remote_log:
        partition = next(iter(remote_log.context.source.partitions())).topic_id_partition  # type: ignore[union-attr]
        remote_log.context.leases.acquire(partition, "me", 1000)
        beside = {path.name: rights(path) for path in (tmp_path / "elsewhere" / "new").iterdir()}

    assert {"metadata.db", "metadata.db-wal", "metadata.db-shm"} <= set(beside)
    assert set(beside.values()) == {0o600}
    assert rights(tmp_path / "elsewhere" / "new") == 0o700


def test_backups_what_is_restored_from_them_and_maps_of_offsets_are_private(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    database = tmp_path / "state" / "remote_log_metadata.db"
    assert run_on(files, "metadata", "backup", tmp_path / "state" / "backup.db").exit_code == 0
    database.unlink()
    assert run_on(files, "metadata", "restore", tmp_path / "state" / "backup.db").exit_code == 0
    with OffsetMapWriter.open(tmp_path / "state" / "restores" / "map.jsonl", MapHead({}, {}, {0: 0})):
        pass

    assert {"backup.db", "remote_log_metadata.db", "restores"} <= {path.name for path in (tmp_path / "state").iterdir()}
    assert open_to_others(tmp_path / "state") == {}


def test_a_state_directory_that_all_may_read_is_narrowed_when_it_is_opened(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    state = tmp_path / "state"
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (state / "java").symlink_to(tmp_path / "logs")
    (tmp_path / "logs").chmod(0o755)

    files.open().close()

    assert rights(state) == rights(state / "remote") == 0o700
    assert rights(state / "remote_log_metadata.db") == 0o600
    assert rights(tmp_path / "logs") == 0o755


def test_a_folder_with_other_things_in_it_stays_and_what_is_ours_in_it_is_narrowed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    state = tmp_path / "state"
    (state / "somebody's").mkdir()
    for path in state.iterdir():
        path.chmod(0o755)
    state.chmod(0o755)

    files.open().close()

    assert [rights(path) for path in (state, state / "somebody's", state / "remote")] == [0o755, 0o755, 0o700]


def test_a_group_that_an_admin_let_in_stays(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (tmp_path / "state").chmod(0o750)

    files.open().close()

    assert rights(tmp_path / "state") == 0o750


def test_a_store_that_a_site_shares_keeps_the_rights_of_its_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    files = a_remote_log(tmp_path, rsm_config_url=str(shared))

    with files.open() as remote_log:
        assert copy(remote_log).is_whole

    made = {path: rights(path) for path in shared.rglob("*") if path.name != ".reserve"}
    assert rights(shared) == 0o2770
    assert {mode for path, mode in made.items() if path.is_dir()} == {0o2770}
    assert {mode for path, mode in made.items() if path.is_file()} == {0o660}
