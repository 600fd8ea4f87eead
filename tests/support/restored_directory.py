"""A log directory that orders was restored into, and what a broker finds there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from support.aftermath import assert_settled, run
from support.command_line import run_on
from support.local_logs import read_all
from support.remote_logs import LOG_CONFIG, RemoteLogFiles, records
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter

Ends = Mapping[str, int]
"""The end of the log in each directory of a partition."""


def restore(files: RemoteLogFiles, target: Path) -> None:
    """Restore orders into `target`."""
    run(files, "restore", "orders", "--to-directory", target, "--validation", "records")


def contents(target: Path) -> dict[str, bytes]:
    """Return the files in `target`, without the directory's own id; checkpoints have no order."""
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
    return {
        name: b"" if name == META_PROPERTIES else b"\n".join(sorted(path.read_bytes().splitlines()))
        for name, path in found.items()
        if name != ".lock"
    }


def assert_nothing_half_has_a_name(target: Path, ends: Ends) -> None:
    """Assert that what a broker would take for a partition is whole; what is named as on its way out it removes."""
    for directory in target.iterdir() if target.exists() else ():
        if directory.is_dir() and not directory.name.endswith("-delete"):
            # A copy: who opens a log changes its directory.
            looked_at = shutil.copytree(directory, target.with_name("looked at") / directory.name, dirs_exist_ok=True)
            with LocalLog.open(looked_at, LOG_CONFIG, clock=lambda: 0) as log:
                assert (log.log_start_offset, log.log_end_offset) == (0, ends[directory.name])
                assert read_all(log) == records(0, ends[directory.name])
            shutil.rmtree(looked_at)


def assert_restore_completes(files: RemoteLogFiles, target: Path, expected: dict[str, bytes], ends: Ends) -> None:
    """Assert that the same command ends what a killed one began, with the contents of one that was never killed.

    Of one that was killed behind its last step it says that all is there.
    """
    if contents(target) == expected:
        again = run_on(files, "restore", "orders", "--to-directory", target)
        assert "has orders-0, orders-1 already, with records" in again.err
    else:
        restore(files, target)
    found = contents(target)
    assert found == expected, [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
    with LogDirectoryWriter.open(target) as broker:
        for name, end in ends.items():
            assert read_all(broker.log("orders", int(name.rpartition("-")[2]))) == records(0, end)
    assert_settled(files)
