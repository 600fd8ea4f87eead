from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command_line import mentions
from support.examinations import Examination, examined
from support.remote_logs import RemoteLogFiles, a_copied_remote_log
from support.small_disks import fill, make_room, small_disk
from unit.tiered_storage.doctor.folders import everything_in
from unit.unprivileged import NOBODY, as_nobody

MIB = 1 << 20


@pytest.fixture
def site() -> Iterator[RemoteLogFiles]:
    """A remote log of an ordinary user, in a folder that all may enter."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        files = a_copied_remote_log(root)
        files.open().close()
        (root / "state" / "work").mkdir(mode=0o700)
        assert files.config
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield files


def examined_by_nobody(files: RemoteLogFiles) -> Examination:
    config = files.root / "settings.yaml"
    found = as_nobody(lambda: examined(config))
    assert isinstance(found, Examination), found
    return found


def test_state_that_only_its_owner_reads_is_as_it_must_be(site: RemoteLogFiles) -> None:
    found = examined_by_nobody(site)

    assert found.wrong() == []
    assert found.ok("rights") == [f"{site.root / 'state'} is closed to others | "]


def test_state_that_anybody_may_read_is_wrong_and_left_as_it_is(site: RemoteLogFiles) -> None:
    state = site.root / "state"
    state.chmod(0o755)
    (state / "remote_log_metadata.db").chmod(0o644)
    before = everything_in(site.root)

    [message] = examined(site).wrong("rights")

    assert mentions(message, f"{state} (drwxr-xr-x)", "chmod")
    assert f"{state / 'remote_log_metadata.db'} (-rw-r--r--)" in message
    assert f"| chmod -R go= {state}" in message
    assert (state.stat().st_mode & 0o777, everything_in(site.root)) == (0o755, before)


def test_doctor_checks_rights_outside_the_state_folder_too(site: RemoteLogFiles) -> None:
    elsewhere = site.root / "elsewhere"
    for name in ("metadata", "store", "work"):
        (elsewhere / name).mkdir(parents=True)
    site.properties["rlmm.config.url"] = f"sqlite:///{elsewhere}/metadata/some.db"
    for setting, name in (("rsm.config.url", "store"), ("work.url", "work")):
        site.properties[setting] = str(elsewhere / name)
    (elsewhere / "metadata" / "some.db.before-0002").touch(mode=0o644)
    (elsewhere / "work").chmod(0o777)

    found = examined(site)

    wrong = found.wrong("rights")
    assert len(wrong) == 2
    assert f"{elsewhere}/metadata/some.db.before-0002 (-rw-r--r--) | chmod go= " in wrong[0]
    assert wrong[1].startswith("work.url: ")
    assert f" write to {elsewhere}/work" in wrong[1]
    [note] = found.notes("rights")
    assert note.startswith("rsm.config.url: ")
    assert " read " in note
    assert f"{elsewhere}/store" in note


@pytest.mark.parametrize("closed", ["remote_log_metadata.db", "."])
def test_metadata_that_this_user_may_not_write_are_wrong(site: RemoteLogFiles, closed: str) -> None:
    path = site.root / "state" / closed
    path.chmod(path.stat().st_mode & ~0o222)

    [message] = examined_by_nobody(site).wrong("metadata")

    assert f"user {NOBODY} may not write {path}" in message


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_metadata_on_a_disk_that_is_mounted_read_only_are_wrong(site: RemoteLogFiles, user: str) -> None:
    state = str(site.root / "state")
    examine: Callable[[RemoteLogFiles], Examination] = examined if user == "root" else examined_by_nobody
    subprocess.run(["mount", "--bind", state, state], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
        [message] = examine(site).wrong("metadata")
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)

    assert "mounted read-only" in message


@pytest.mark.parametrize(
    ("setting", "name"),
    [("state.directory", "state.directory"), ("rsm.config.url", "store"), ("work.url", "work area")],
)
def test_a_full_disk_is_wrong(site: RemoteLogFiles, tmp_path: Path, setting: str, name: str) -> None:
    with small_disk(tmp_path / "disk", 128 * MIB) as disk:
        site.properties[setting] = str(disk)
        assert [message for message in examined(site).wrong(name) if "almost full" in message] == []
        fill(disk)
        [message] = [message for message in examined(site).wrong(name) if "almost full" in message]
        make_room(disk)

    assert mentions(message, disk, "0 bytes")
    assert "tiered-storage retain and expire" in message


def test_a_log_directory_on_a_full_disk_is_wrong(site: RemoteLogFiles) -> None:
    logs = site.log_directory
    kept = logs.rename(site.root / "kept")
    with small_disk(logs, 128 * MIB):
        subprocess.run(["cp", "-a", f"{kept}/.", str(logs)], check=True)
        assert examined(site).wrong("log.dirs") == []
        fill(logs)
        [message] = examined(site).wrong("log.dirs")
    assert mentions(message, logs, "0 bytes")
