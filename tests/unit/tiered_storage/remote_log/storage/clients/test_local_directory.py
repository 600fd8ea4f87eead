"""What is particular to a directory: durability, full and forbidden disks, leftovers of killed processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remote_segments import segment_bytes, segment_metadata
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
)
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.storage.documents.object_names import parse_object_name, segment_object_names

NAME = "cluster/topic/0/object.log"
CONTENT = segment_bytes(100_000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "mounted" / "store"


@pytest.fixture
def directory(root: Path) -> LocalDirectory:
    return LocalDirectory(root)


def put(directory: LocalDirectory, name: str = NAME, content: bytes = CONTENT) -> None:
    view = memoryview(content)
    directory.put(name, len(content), (view[start : start + 30_000] for start in range(0, len(content), 30_000)))


def failing(error_number: int, after: int = 0) -> Any:
    """Return a stand-in for a system call that does what the real one does `after` times, and then fails."""
    real_write, calls = os.write, iter(range(after))

    def call(descriptor: int, data: memoryview) -> int:
        if next(calls, None) is None:
            raise OSError(error_number, os.strerror(error_number))
        return real_write(descriptor, data)

    return call


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A directory without write permission; root, which ignores permissions, continues as another user meanwhile."""
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield tmp_path
    os.seteuid(user)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_reported_and_left_as_it_was(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    monkeypatch.setattr(os, "write", failing(error_number, after=2))
    with pytest.raises(RemoteStorageFullError, match=rf"^{root}/cluster/topic/0.*\b100000 bytes.*object.log"):
        put(directory)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_too_little_room_is_reported_before_the_first_byte(directory: LocalDirectory, root: Path) -> None:
    chunks = iter([memoryview(b"never asked for")])
    with pytest.raises(RemoteStorageFullError, match=f"^{root}/cluster/topic/0.*{2**60} bytes"):
        directory.put(NAME, 2**60, chunks)
    assert bytes(next(chunks)) == b"never asked for"


def test_a_limit_of_the_process_is_no_room_either(root: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from tiered_storage.remote_log.storage.clients import local_directory
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
LocalDirectory(Path(sys.argv[1])).put("a/b", 100_000, iter([memoryview(bytes(100_000))]))
"""
    result = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, check=False)
    assert "RemoteStorageFullError" in result.stderr
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_directory_without_rights_refuses(forbidden: Path) -> None:
    with pytest.raises(RemoteStorageRefusedError, match=f"^{forbidden}.*user {os.geteuid()}"):
        put(LocalDirectory(forbidden / "store"))


@pytest.mark.parametrize("error_number", [errno.EROFS, errno.EPERM])
def test_a_file_system_that_is_read_only_refuses(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    monkeypatch.setattr(os, "write", failing(error_number))
    with pytest.raises(RemoteStorageRefusedError, match=f"^{root}/"):
        put(directory)


def test_another_failure_of_the_disk_is_worth_another_try(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.EIO, after=1))
    with pytest.raises(RemoteStorageError, match=f"^{root}/") as raised:
        put(directory)
    assert raised.value.retriable
    assert list(directory.list()) == []


def test_writes_of_a_part_are_completed(directory: LocalDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:7001]))
    put(directory)
    assert directory.get_range(NAME, 0, len(CONTENT)) == CONTENT


def test_a_put_reads_back_and_compares(directory: LocalDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    real_preadv = os.preadv

    def flipping(descriptor: int, buffers: list[memoryview], position: int) -> int:
        count = real_preadv(descriptor, buffers, position)
        if count:
            buffers[0][count // 2] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", flipping)
    with pytest.raises(RemoteObjectCorruptError, match=r"\b100000 .*CRC-32C"):
        put(directory)
    assert list(directory.list()) == []


def test_the_file_is_synced_before_its_name_and_the_name_before_the_call_ends(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink()}")
        real_fsync(descriptor)

    def replace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        done.append(f"rename to {Path(f'/proc/self/fd/{dst_dir_fd}').readlink()}/{target}")
        real_replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    LocalDirectory(root, lambda: "0123456789abcdef").put("cluster/object", 3, iter([memoryview(b"abc")]))
    assert done == [
        f"sync {root.parent.parent}",
        f"sync {root.parent}",
        f"sync {root}",
        f"sync {root}/cluster/object.0123456789abcdef.tmp",
        f"rename to {root}/cluster/object",
        f"sync {root}/cluster",
    ]


def test_one_sync_of_the_folder_makes_all_names_sure(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(directory, "folder/before")
    synced: list[Path] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    directory.put("folder/first", 1, iter([memoryview(b"1")]), more_follows=True)
    assert root / "folder" not in synced
    directory.put("folder/second", 1, iter([memoryview(b"2")]))
    assert synced[-1] == root / "folder"


def test_leftovers_of_a_killed_process_are_known_by_their_names(root: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tiered_storage.remote_log.storage.clients import local_directory
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

def chunks():
    yield memoryview(bytes(50_000))
    print("half", flush=True)
    time.sleep(600)

LocalDirectory(Path(sys.argv[1])).put(sys.argv[2], 100_000, chunks())
"""
    metadata = segment_metadata(100_000)
    names = segment_object_names(metadata.segment_id, metadata.start_offset)
    with subprocess.Popen([sys.executable, "-c", program, root, names.data], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    directory = LocalDirectory(root)
    with pytest.raises(RemoteObjectNotFoundError):
        directory.size(names.data)
    (left,) = directory.list()
    parsed = parse_object_name(left.name)
    assert parsed is not None
    assert parsed.temporary
    assert parsed.segment_id == metadata.segment_id
    directory.discard_unfinished_many([names.stem])
    assert list(directory.list()) == []


def test_only_temporary_files_of_the_same_object_are_discarded(directory: LocalDirectory, root: Path) -> None:
    put(directory, "folder/a.log", b"x")
    for name in ("a.log.0123456789abcdef.tmp", "b.log.0123456789abcdef.tmp", "a.log.tmp"):
        (root / "folder" / name).write_bytes(b"half")
    directory.discard_unfinished_many(["folder/a"])
    assert {found.name for found in directory.list()} == {
        "folder/a.log", "folder/a.log.tmp", "folder/b.log.0123456789abcdef.tmp"
    }  # fmt: skip


def test_a_create_whose_temporary_file_was_discarded_finds_the_other_one(
    directory: LocalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_after_another(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        assert directory.create("identity.json", b"theirs")
        directory.discard_unfinished_many(["identity.json"])
        link(*arguments, **options)

    monkeypatch.setattr(os, "link", link_after_another)
    assert not directory.create("identity.json", b"ours")
    assert directory.get_range("identity.json", 0, 6) == b"theirs"


def test_a_writer_whose_file_was_discarded_fails_and_leaves_nothing(directory: LocalDirectory) -> None:
    def chunks() -> Iterator[memoryview]:
        yield memoryview(b"half")
        directory.discard_unfinished_many([NAME])
        yield memoryview(b"half")

    with pytest.raises(RemoteStorageError, match="could not rename"):
        directory.put(NAME, 8, chunks())
    assert list(directory.list()) == []


def test_an_interrupted_writer_leaves_nothing(directory: LocalDirectory) -> None:
    def chunks() -> Iterator[memoryview]:
        yield memoryview(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directory.put(NAME, 8, chunks())
    assert list(directory.list()) == []


def test_a_file_where_a_folder_should_be_is_reported(directory: LocalDirectory, root: Path) -> None:
    put(directory, "cluster", b"a file")
    with pytest.raises(RemoteStorageError, match=f"^{root}/cluster/topic/0/object.log"):
        put(directory)


def test_a_name_that_the_file_system_cannot_have_is_no_passing_fault(directory: LocalDirectory) -> None:
    with pytest.raises(ConfigurationError, match="object store"):
        put(directory, "x" * 300 + "/y")


def test_a_root_must_be_an_absolute_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (Path("relative"), tmp_path / "file"):
        with pytest.raises(ConfigurationError, match="absolute path"):
            LocalDirectory(root)


def test_symbolic_links_below_the_root_lead_nowhere(directory: LocalDirectory, root: Path, tmp_path: Path) -> None:
    put(directory, "a/b", b"x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"secret")
    (root / "a" / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "file").symlink_to(tmp_path / "elsewhere" / "secret")
    assert {found.name for found in directory.list()} == {"a/b"}
    for read in (directory.size, lambda name: directory.get_range(name, 0, 6)):
        with pytest.raises(RemoteObjectNotFoundError, match=f"^{root}/a/file"):
            read("a/file")
        with pytest.raises(RemoteStorageError, match=f"^{root}/a/folder/secret: "):
            read("a/folder/secret")
    for folder in ("a/folder", "a/folder/deeper"):
        with pytest.raises(RemoteStorageError, match=f"^{root}/{folder}: "):
            list(directory.list(folder))


@pytest.mark.parametrize("name", ["a/folder/object", "a/folder/deeper/object"])
def test_nothing_is_written_moved_or_deleted_through_a_symbolic_link(
    directory: LocalDirectory, root: Path, tmp_path: Path, name: str
) -> None:
    put(directory, "a/b", b"x")
    elsewhere = tmp_path / "elsewhere"
    for folder in (elsewhere, elsewhere / "deeper"):
        folder.mkdir()
        for file in ("object", "object.0123456789abcdef.tmp"):
            (folder / file).write_bytes(b"theirs")
    (root / "a" / "folder").symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    attempts: list[Callable[[], object]] = [
        lambda: put(directory, name),
        lambda: put(directory, f"{name}-new"),
        lambda: directory.create(f"{name}-new", b"ours"),
        lambda: directory.move("a/b", name),
        lambda: directory.move(name, "a/moved"),
        lambda: delete_object(directory, name),
        lambda: directory.discard_unfinished_many([name]),
    ]
    for attempt in attempts:
        with pytest.raises(RemoteStorageRefusedError, match="symbolic link"):
            attempt()
    failed = directory.delete_many([name, "a/b"])
    assert list(failed) == [name]
    assert isinstance(failed[name], RemoteStorageRefusedError)
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before
    assert not (root / "a" / "moved").exists()


def test_a_symbolic_link_in_the_place_of_an_object_is_replaced_or_removed_alone(
    directory: LocalDirectory, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    root.mkdir(parents=True)
    for name in ("put", "moved", "deleted", "created"):
        (root / name).symlink_to(tmp_path / "theirs")
    put(directory, "put", b"ours")
    put(directory, "another", b"ours")
    directory.move("another", "moved")
    delete_object(directory, "deleted")
    assert not directory.create("created", b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert {found.name for found in directory.list()} == {"put", "moved"}


def test_the_root_itself_may_be_a_symbolic_link(directory: LocalDirectory, root: Path, tmp_path: Path) -> None:
    put(directory, "a/b", b"x")
    (tmp_path / "link").symlink_to(root)
    linked = LocalDirectory(tmp_path / "link")
    assert [found.name for found in linked.list()] == [found.name for found in linked.list("a")] == ["a/b"]
    assert (linked.size("a/b"), linked.get_range("a/b", 0, 1)) == (1, b"x")


def test_only_a_regular_file_is_an_object(directory: LocalDirectory, root: Path) -> None:
    put(directory, "a/b", b"x")
    os.mkfifo(root / "a" / "fifo")
    assert {found.name for found in directory.list()} == {"a/b"}
    for read in (directory.size, lambda name: directory.get_range(name, 0, 1)):
        for name in ("a", "a/fifo"):
            with pytest.raises(RemoteObjectNotFoundError, match=f"^{root}/{name}: .*regular file"):
                read(name)


def test_failed_deletions_are_reported_and_each_folder_is_synced_once(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a/1", "a/2", "b/1", "b/2"]
    for name in names:
        put(directory, name, b"x")
    (root / "a/stuck").mkdir()
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))

    failed = directory.delete_many([*names, "a/stuck"])

    assert list(failed) == ["a/stuck"]
    assert "could not remove" in str(failed["a/stuck"]) or "may not remove" in str(failed["a/stuck"])
    assert synced == [root / "a", root / "b"]
    assert list(directory.list()) == []


def test_deletions_in_a_folder_that_cannot_be_synced_are_reported_as_failed(
    directory: LocalDirectory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "b/1"):
        put(directory, name, b"x")

    def broken(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == root / "a":
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    assert list(directory.delete_many(["a/1", "b/1"])) == ["a/1"]
