from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiered_storage.errors import InvalidLogDirectoryError, LogDirectoryLockedError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_unlocked

AS_JAVA_LOCKS = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""
"""The classic POSIX record lock that Java's FileChannel.tryLock takes on Linux."""


@contextmanager
def broker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that locks `directory` as a broker does and holds it until the block ends."""
    command = [sys.executable, "-c", AS_JAVA_LOCKS, str(directory / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.communicate()


def has_locked(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "locked\n"


def test_a_directory_that_a_broker_holds_is_refused_with_its_pid_and_what_to_do(tmp_path: Path) -> None:
    with broker(tmp_path) as process:
        assert has_locked(process)
        for attempt in (lambda: DirectoryLock.acquire(tmp_path), lambda: ensure_unlocked(tmp_path)):
            with pytest.raises(LogDirectoryLockedError) as raised:
                attempt()
            assert str(tmp_path) in str(raised.value)
            assert f"process {process.pid}" in str(raised.value)
            assert "stop the broker" in str(raised.value)

    with DirectoryLock.acquire(tmp_path):
        pass


@pytest.mark.parametrize("exclusive", [True, False])
def test_no_broker_can_start_in_a_directory_that_we_hold(tmp_path: Path, exclusive: bool) -> None:
    with DirectoryLock.acquire(tmp_path, exclusive=exclusive), broker(tmp_path) as process:
        assert not has_locked(process)


def test_our_lock_outlives_another_opening_and_closing_of_the_file(tmp_path: Path) -> None:
    with DirectoryLock.acquire(tmp_path):
        (tmp_path / ".lock").open("rb").close()
        with broker(tmp_path) as process:
            assert not has_locked(process)


def test_two_runs_exclude_each_other_even_in_one_process(tmp_path: Path) -> None:
    with DirectoryLock.acquire(tmp_path), pytest.raises(LogDirectoryLockedError, match="another run"):
        DirectoryLock.acquire(tmp_path)


def test_runs_that_only_read_share_a_directory_and_exclude_those_that_write(tmp_path: Path) -> None:
    with DirectoryLock.acquire(tmp_path, exclusive=False), DirectoryLock.acquire(tmp_path, exclusive=False):
        with pytest.raises(LogDirectoryLockedError, match="another run"):
            DirectoryLock.acquire(tmp_path)
        with pytest.raises(LogDirectoryLockedError, match="another run"):
            ensure_unlocked(tmp_path)


def test_a_released_lock_is_free_and_may_be_released_again(tmp_path: Path) -> None:
    lock = DirectoryLock.acquire(tmp_path)

    lock.release()
    lock.release()

    ensure_unlocked(tmp_path)


def test_asking_creates_no_file_and_takes_no_lock(tmp_path: Path) -> None:
    ensure_unlocked(tmp_path)
    assert list(tmp_path.iterdir()) == []

    (tmp_path / ".lock").touch()
    ensure_unlocked(tmp_path)
    with broker(tmp_path) as process:
        assert has_locked(process)


def test_a_directory_where_no_lock_file_can_be_made_is_refused_by_name(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    with pytest.raises(InvalidLogDirectoryError, match=f"{missing} cannot be locked"):
        DirectoryLock.acquire(missing)


def test_a_lock_is_given_back_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), DirectoryLock.acquire(tmp_path):
        raise RuntimeError

    ensure_unlocked(tmp_path)


def test_a_lock_file_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    elsewhere, lock = tmp_path / "elsewhere", tmp_path / ".lock"
    attempts = (lambda: DirectoryLock.acquire(tmp_path), lambda: ensure_unlocked(tmp_path))

    def refused(reason: str) -> None:
        for attempt in attempts:
            with pytest.raises(InvalidLogDirectoryError, match=reason):
                attempt()

    lock.symlink_to(elsewhere)
    refused(f"cannot be locked: {lock} is a symbolic link to {elsewhere}. Stop the broker and remove it")
    assert not elsewhere.exists()
    elsewhere.touch()
    refused("is a symbolic link to")
    lock.unlink()
    os.mkfifo(lock)
    refused(f"{lock} is not a regular file")
    lock.unlink()
    lock.mkdir()
    refused(f"{lock} is not a regular file")
