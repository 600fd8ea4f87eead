"""On a full disk, commands that free room, commands that stop deletions, and reads still work.

The disks of the local logs, the store and the state are file systems of their own; each is filled to the last byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    be_the_original,
    offsets_read,
    ranges,
)
from support.remote_logs import segments_of as segments_in
from support.small_disks import fill, free, make_room, small_disk
from tiered_storage import disk_space
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint
from tiered_storage.remote_log.storage.clients.local_directory import RESERVE

RESERVE_BYTES = 8 << 20
ROOMY = 6 * RESERVE_BYTES
SEGMENTS = 6
DISKS = ("logs", "state", "store")
DELETABLE = {**ENABLED, "retention.bytes": 2000, "local.retention.bytes": 1000}


class Site:
    """A remote log whose logs, state and store are each on a disk of their own."""

    def __init__(self, root: Path, disks: ExitStack) -> None:
        source = a_copied_remote_log(root / "source", {("orders", 0): SEGMENTS}, topics={"orders": DELETABLE})
        for name in DISKS:
            disks.enter_context(small_disk(root / name, ROOMY))
        shutil.copytree(source.log_directory, root / "logs", dirs_exist_ok=True)
        shutil.move(source.store, source.root / "store")
        for name in ("state", "store"):
            shutil.copytree(source.root / name, root / name, dirs_exist_ok=True)
        be_the_original(root / "state" / "remote_log_metadata.db")
        properties = {**source.properties, "rsm.config.url": str(root / "store")}
        self.files = RemoteLogFiles(root, source.clock, properties)
        # The first writes with free room make the reserves.
        self.run("stop-deletions")
        self.run("stop-deletions", "--lift")
        self.append(1)
        self.run("copy")

    def append(self, segments: int) -> None:
        self.files.append(2 * segments)

    def disk(self, name: str) -> Path:
        return self.files.root / name

    def try_to(self, *arguments: object) -> CommandResult:
        return run_on(self.files, *arguments)

    def run(self, *arguments: object) -> CommandResult:
        """Run a command that has to succeed."""
        done = self.try_to(*arguments)
        assert done.exit_code == 0, done.out + done.err
        return done

    def starts(self) -> list[int]:
        with self.files.open() as remote_log:
            return [start for start, _ in ranges(segments_in(remote_log))]

    def read(self, start: int = 0) -> list[int]:
        with self.files.open() as remote_log:
            return offsets_read(remote_log, start)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(disk_space, "RESERVE_BYTES", RESERVE_BYTES)
    with ExitStack() as disks:
        yield Site(tmp_path, disks)


@pytest.mark.parametrize("full", [*DISKS, "all"])
def test_retain_and_expire_work_on_a_full_disk(site: Site, full: str) -> None:
    filled = [site.disk(name) for name in (DISKS if full == "all" else [full])]
    for disk in filled:
        fill(disk)

    site.run("retain")
    site.run("expire")

    for disk in filled:
        make_room(disk)
    assert site.starts() == [50, 60]
    assert site.files.local_starts() == [60, 70]
    starts = read_offset_checkpoint(site.disk("logs") / LOG_START_OFFSET_CHECKPOINT)
    assert starts[("orders", 0)] == 60
    with site.files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("full", [*DISKS, "all"])
def test_an_undelete_works_on_a_full_disk(site: Site, full: str) -> None:
    every = an_expiry_to_take_back(site)
    filled = [site.disk(name) for name in (DISKS if full == "all" else [full])]
    for disk in filled:
        fill(disk)

    site.run("undelete", "orders")

    assert site.read() == every
    for disk in filled:
        make_room(disk)
    with site.files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("full", ["state", "store"])
def test_an_undelete_without_room_does_not_suggest_expire(site: Site, full: str) -> None:
    an_expiry_to_take_back(site)
    fill(site.disk(full))
    reserve = {"state": "remote_log_metadata.db-reserve", "store": RESERVE}[full]
    (site.disk(full) / reserve).unlink()
    fill(site.disk(full))

    refused = site.try_to("undelete", "orders")

    assert refused.exit_code == 1
    assert mentions(refused.err, f"{site.disk(full)} ", "0 bytes free")
    assert "expir" not in refused.err


def an_expiry_to_take_back(site: Site) -> list[int]:
    """Let expire mark segments that stay for an hour; return every offset from before."""
    site.files.properties["remote.log.deletion.grace.ms"] = 3_600_000
    every = site.read()
    site.run("expire")
    with site.files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 50
    return every


@pytest.mark.parametrize("full", DISKS)
def test_reads_work_on_a_full_disk(site: Site, full: str) -> None:
    every = site.read()
    fill(site.disk(full))

    assert site.read() == site.read() == every
    assert site.run("segments", "--json").rows


@pytest.mark.parametrize("full", [("state",), ("state", "store")])
def test_deletions_are_stopped_on_a_full_disk(site: Site, full: tuple[str, ...]) -> None:
    for name in full:
        fill(site.disk(name))

    site.run("stop-deletions", "--reason", "disk")

    refused = site.try_to("expire")
    assert refused.exit_code == 1
    assert "disk" in refused.err
    assert len(site.starts()) == SEGMENTS + 1
    site.run("stop-deletions", "--lift")
    site.run("expire")
    assert site.starts() == [50, 60]


def test_a_stop_that_cannot_be_written_says_what_else_stops_everything(site: Site) -> None:
    fill(site.disk("state"))
    (site.disk("state") / "remote_log_metadata.db-reserve").unlink()
    fill(site.disk("state"))

    refused = site.try_to("stop-deletions")

    assert refused.exit_code == 1
    assert mentions(refused.err, f"{site.disk('state')} ", "0 bytes free")
    assert "deletions are NOT stopped" in refused.err
    assert "pause" in refused.err


def test_a_copy_leaves_the_reserves_to_what_frees_room(site: Site) -> None:
    site.append(3)
    for name in ("state", "store"):
        fill(site.disk(name))

    refused = site.try_to("copy")

    assert refused.exit_code == 1
    assert mentions(refused.err, f"{site.disk('state')} ", "0 bytes free")
    assert free(site.disk("state")) == free(site.disk("store")) == 0
    make_room(site.disk("state"))
    refused = site.try_to("copy")
    assert refused.exit_code == 1
    assert mentions(refused.err, f"{site.disk('store')} ", "0 bytes free")
    assert free(site.disk("store")) == 0
    site.run("expire")


def test_reserves_are_given_up_and_made_again_and_no_object_of_the_store(site: Site) -> None:
    reserves = [site.disk("store") / RESERVE, site.disk("state") / "remote_log_metadata.db-reserve"]
    assert [_allocated(each) for each in reserves] == [RESERVE_BYTES] * 2
    assert {each.stat().st_mode & 0o777 for each in reserves} == {0o600}
    for name in ("state", "store"):
        fill(site.disk(name))

    site.run("expire")

    # What was left of the room was taken back at the end.
    assert all(_allocated(each) > RESERVE_BYTES // 2 for each in reserves)
    for name in ("state", "store"):
        make_room(site.disk(name))
    site.append(1)
    site.run("copy")
    assert [_allocated(each) for each in reserves] == [RESERVE_BYTES] * 2
    with site.files.open() as remote_log:
        assert remote_log.checks.audit().anomalies == ()


def _allocated(path: Path) -> int:
    """Return how much of the disk a file really has."""
    return path.stat().st_blocks * 512
