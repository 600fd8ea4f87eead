"""What a remote log may lose: objects of its store, or all of its metadata; and what is to come of it."""

from __future__ import annotations

from pathlib import Path

from support.aftermath import GRACE_MS, LEASE_MS, assert_readable, assert_settled, finished_ranges, run
from support.command_line import run_on
from support.crash_points import Crash, CrashPoint
from support.crash_site import CrashSite
from support.plain_reader import plain_reader
from support.remote_logs import ORDERS_0, RemoteLogFiles, flip_bit, offsets_read
from support.shared_clock import SharedClock

LOG_START = 25
KNOWN_AGAIN = [("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19), ("orders-1", 20, 29)]


def damage(files: RemoteLogFiles) -> None:
    """Break segments of orders-0 and orders-1, one by a bit and one by a lost object, and leave a half behind in each.

    They are the second of orders-0 and the first of orders-1.
    """
    data = {(path.parts[-2], path.name[:20]): path for path in files.objects(".log")}
    flip_bit(data["0", f"{10:020}"], 100)
    data["1", f"{0:020}"].unlink()
    for number in ("0", "1"):
        left = data[number, f"{10:020}"]
        left.with_name(f"{left.name}.0123456789abcdef.tmp").write_bytes(b"half")


def assert_repair_completes(files: RemoteLogFiles, clock: SharedClock, expected: list[tuple[str, int, int]]) -> None:
    """Assert that a repair after a killed one does what it should have; `expected` are the ranges that are finished."""
    clock.move_by(LEASE_MS + 1)
    run(files, "repair", "--deep")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == expected
        assert_readable(remote_log)
    run(files, "audit", "--deep")

    clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


def metadata_files(files: RemoteLogFiles) -> list[Path]:
    """Return the file of the metadata, where it is there, and its logs."""
    return sorted(files.root.glob("state/remote_log_metadata.db*"))


def lose_metadata(files: RemoteLogFiles) -> None:
    """Remove the metadata."""
    for path in metadata_files(files):
        path.unlink()


def without_metadata(site: CrashSite, name: str = "site") -> RemoteLogFiles:
    """Return a remote log that lost them: a copy of orders-1 never ended, and the oldest records of orders-0 went."""
    files = site.copied({("orders", 0): 3, ("orders", 1): 2}, name)
    files.append(2, number=1)
    site.programs.kill("copy", "--config", files.config, at=Crash(CrashPoint.AFTER_INDEXES))
    site.clock.move_by(LEASE_MS + 1)
    run(files, "delete-records", "orders", 0, "--before", LOG_START)
    lose_metadata(files)
    return files


def assert_rebuild_completes(files: RemoteLogFiles, clock: SharedClock) -> None:
    """Assert that a rebuild after a killed one does what it should have, where that had not done all.

    `files` are those of `without_metadata`.
    """
    if metadata_files(files):
        assert "never changes one" in run_on(files, "rebuild-metadata").err
    else:
        run(files, "rebuild-metadata", "--yes")
    with files.open() as remote_log:
        remote_log.bind_store()
        assert_readable(remote_log)
        assert plain_reader(remote_log).log_start_offset(ORDERS_0) == LOG_START
        assert offsets_read(remote_log, LOG_START) == list(range(LOG_START, 35))

    # What had only been marked is live again: whoever wants it gone says so again.
    run(files, "topics", "allow-deletion", "orders")
    # It was copied years ago by our clock.
    run(files, "metadata", "trust-clock", "--yes")
    run(files, "copy")
    run(files, "delete-records", "orders", 0, "--before", LOG_START)
    clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == KNOWN_AGAIN
    assert_settled(files)
