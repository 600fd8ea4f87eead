"""A FIFO or device in place of a file that a command reads is an error, never a wait."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import CommandResult, mentions, run, run_on
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, a_remote_log, offsets_read

MOST_SECONDS = 20


@contextmanager
def in_time(fifo: Path) -> Iterator[None]:
    """Fail where the block waits for somebody to write to `fifo`; let no thread wait for it after that."""

    def fail(*_: object) -> None:
        raise AssertionError(f"waited for {fifo}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))


def make_fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def run_with(files: RemoteLogFiles, fifo: Path, *arguments: object) -> CommandResult:
    with in_time(fifo):
        return run(*arguments) if arguments[0] == "dump" else run_on(files, *arguments)


REFUSED: list[tuple[str, tuple[str, ...]]] = [
    *((".lock", (command,)) for command in ("plan", "copy", "retain", "expire", "audit")),
    (".lock", ("read", "orders", "0")),
    (".lock", ("topics", "list")),
    *(
        (name, ("dump", "{}"))
        for name in (
            "orders-0/00000000000000000010.log",
            "orders-0/00000000000000000010.index",
            "orders-0/00000000000000000010.timeindex",
            "orders-0/00000000000000000010.snapshot",
            "orders-0/leader-epoch-checkpoint",
            "orders-0/partition.metadata",
            "meta.properties",
            "replication-offset-checkpoint",
        )
    ),
]


@pytest.mark.parametrize(("name", "command"), REFUSED, ids=lambda each: each if isinstance(each, str) else each[0])
def test_a_fifo_in_a_log_directory_is_refused_by_name(tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": ENABLED})
    fifo = make_fifo(files.log_directory / name)

    ended = run_with(files, fifo, *(fifo if part == "{}" else part for part in command))

    assert (ended.exit_code, f"{fifo}" in ended.out + ended.err) == (1, True), ended
    assert "not a regular file" in ended.out + ended.err


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "snapshot"])
def test_a_fifo_in_place_of_an_index_counts_as_damage_and_stops_no_read(tmp_path: Path, suffix: str) -> None:
    files = a_remote_log(tmp_path, topics={"orders": ENABLED})
    fifo = make_fifo(files.partition_directory() / f"00000000000000000010.{suffix}")

    assert run_with(files, fifo, "read", "orders", 0, "--offset", 14, "--max-records", 1).exit_code == 0
    assert run_with(files, fifo, "offsets", "orders", 0, "--time", 1).exit_code == 0
    assert len(run_with(files, fifo, "copy", "--json").rows) == 3
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))


def test_files_that_a_person_names_are_refused_by_name(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": ENABLED})
    fifo = make_fifo(tmp_path / "fifo")
    message = f"{fifo}: cannot read the rights: it is not a regular file"
    refused = run_with(files, fifo, "retain", "--plan", fifo).err
    assert mentions(refused, f"{fifo}: ", "plan", "regular file")
    with in_time(fifo):
        assert mentions(run("plan", "--config", fifo).err, fifo, "regular file")
    files.properties["read.service.rights.file"] = str(fifo)
    doctor = run_with(files, fifo, "doctor", "--json")
    assert (doctor.exit_code, message in doctor.out) == (1, True)


def test_a_lock_file_that_is_a_link_stops_a_trim_and_nothing_is_made_where_it_leads(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    elsewhere, lock = tmp_path / "elsewhere", files.log_directory / ".lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(elsewhere)

    trimmed = run_on(files, "retain")

    assert trimmed.exit_code == 1 and mentions(trimmed.err, lock, "symbolic link", elsewhere), trimmed
    assert (elsewhere.exists(), files.local_starts()) == (False, [0, 10, 20, 30])
