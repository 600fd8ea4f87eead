"""Objects as files below a directory, durable when a call returns: a disk, a RAID, a mounted file system.

An object is written under a temporary name in its own folder, read back and checked, synced and renamed, and the folder
is synced; so are newly created folders. Reading back finds corruption on the way into the page cache; the audit finds
corruption on the disk.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tiered_storage.disk_space import DiskReserve, free_bytes
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
)
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.private_files import PRIVATE_FOLDER
from tiered_storage.remote_log.storage.clients.durable_file import file_errors, no_room, write_file
from tiered_storage.remote_log.storage.clients.inner_folders import LISTED, inner_folder, open_inside
from tiered_storage.remote_log.storage.clients.object_client import (
    CheckedChunks,
    StoredObject,
    StoreReserve,
    WrittenObject,
    check_object_name,
    checked_names,
    is_temporary_name,
    temporary_name,
)

RESERVE = ".reserve"
"""A file at the root that is not an object: it reserves room for documents on a full disk."""

_DOCUMENT = ".json"
"""The suffix of names that may use the reserve: expiring segments writes a partition manifest first."""

_LONGEST_FILE_NAME = 255

_Written = TypeVar("_Written")


def _random_hex() -> str:
    return secrets.token_hex(8)


class LocalDirectory:
    """The ObjectClient of a directory. Empty folders stay."""

    def __init__(
        self, root: Path, random_hex: Callable[[], str] = _random_hex, *, reserve: StoreReserve | None = None
    ) -> None:
        """Use `root`, an absolute path, created with the first object; `random_hex` returns 16 hex digits.

        With `reserve`, a file at the root reserves room for the documents of deletions, if `reserve` lets them use it.

        Raises ConfigurationError if `root` is relative or not a directory, and RemoteStorageRefusedError.
        """
        with file_errors("look at", root):
            usable = root.is_absolute() and (root.is_dir() or not root.exists())
        if not usable:
            raise ConfigurationError(f"{root} cannot hold a store: give the absolute path of a directory")
        self._root = root
        self._random_hex = random_hex
        self._reserve = DiskReserve(root / RESERVE) if reserve else None
        self._may_spend = reserve or StoreReserve()

    @property
    def root(self) -> str:
        """The directory as a file:// URL."""
        return self._root.as_uri()

    @property
    def longest_part(self) -> int:
        """The file system's limit on a name."""
        return _LONGEST_FILE_NAME

    @property
    def has_own_clock(self) -> bool:
        """False: this machine, or the server of a mounted file system, sets the times."""
        return False

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,
        at_most: bool = False,
    ) -> WrittenObject:
        """Write an object; see ObjectClient.

        Raises RemoteStorageFullError before the first byte if the file system shows less room than `size`.
        """
        if self._reserve is None or not name.endswith(_DOCUMENT):
            return self._put(CheckedChunks(name, size, chunks, at_most=at_most), name, size, more_follows=more_follows)
        held = [bytes(chunk) for chunk in chunks]

        def again() -> WrittenObject:
            checked = CheckedChunks(name, size, map(memoryview, held), at_most=at_most)
            return self._put(checked, name, size, more_follows=more_follows)

        return self._with_reserve(self._reserve, again)

    def _put(self, checked: CheckedChunks, name: str, size: int, *, more_follows: bool) -> WrittenObject:
        target = self._path(name)
        with self._temporary(name, size) as (folder, temporary):
            write_file(folder, temporary, target, checked, size)
            with file_errors("rename to its final name", target, size):
                os.replace(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            if not more_follows:
                with file_errors("sync the folder of", target, size):
                    os.fsync(folder)
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        """Write a small object unless there is one; see ObjectClient. The file system must have hard links."""
        if self._reserve is None or not name.endswith(_DOCUMENT):
            return self._create(name, content)
        return self._with_reserve(self._reserve, lambda: self._create(name, content))

    def _create(self, name: str, content: bytes) -> bool:
        target = self._path(name)
        with self._temporary(name, len(content)) as (folder, temporary):
            checked = CheckedChunks(name, len(content), iter((memoryview(content),)))
            write_file(folder, temporary, target, checked, len(content))
            with file_errors("link", target, len(content)):
                try:
                    os.link(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    # Another process was first, and then took our temporary file for an orphan.
                    if _has(folder, target.name):
                        return False
                    raise
            with file_errors("sync the folder of", target, len(content)):
                os.fsync(folder)
        return True

    def move(self, name: str, target: str) -> None:
        """Rename an object, and sync both folders; see ObjectClient."""
        path, new_path = self._path(name), self._path(target)
        with file_errors("rename", path), ExitStack() as opened:
            new_folder = opened.enter_context(inner_folder(self._root, _folder_of(target), makes=True))
            folder = opened.enter_context(inner_folder(self._root, _folder_of(name)))
            os.replace(path.name, new_path.name, src_dir_fd=folder, dst_dir_fd=new_folder)
            os.fsync(new_folder)
            os.fsync(folder)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of an object; see ObjectClient."""
        path = self._path(name)
        pieces = []
        with file_errors("read", path):
            # A FIFO in its place must not block us.
            descriptor = open_inside(self._root, name, os.O_RDONLY | os.O_NONBLOCK)
            try:
                _regular_file(descriptor, path)
                position, end = start, start + length
                while position < end and (piece := os.pread(descriptor, end - position, position)):
                    pieces.append(piece)
                    position += len(piece)
            finally:
                os.close(descriptor)
        if position < end:
            raise RemoteObjectCorruptError(f"{path}: ends at byte {position}, but bytes {start} to {end - 1} were sent")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self, name: str) -> int:
        """Return an object's size in bytes; see ObjectClient."""
        path = self._path(name)
        with file_errors("look at", path):
            descriptor = open_inside(self._root, name, os.O_PATH)
            try:
                return _regular_file(descriptor, path).st_size
            finally:
                os.close(descriptor)

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete many and sync each folder once; see ObjectClient."""
        by_folder: defaultdict[str, list[str]] = defaultdict(list)
        for name in checked_names(names):
            by_folder[_folder_of(name)].append(name)
        failed: dict[str, RemoteStorageError] = {}
        for folder, inside in by_folder.items():
            failed |= self._delete_in(folder, inside)
        return failed

    def _delete_in(self, folder: str, names: Sequence[str]) -> dict[str, RemoteStorageError]:
        failed: dict[str, RemoteStorageError] = {}
        try:
            with (
                file_errors("remove objects in", self._root / folder),
                suppress(FileNotFoundError),
                inner_folder(self._root, folder) as opened,
            ):
                for name in names:
                    try:
                        _unlink(self._root / name, opened)
                    except RemoteStorageError as error:
                        failed[name] = error
                os.fsync(opened)
        except RemoteStorageError as error:
            return dict.fromkeys(names, error)
        return failed

    def discard_unfinished_many(self, stems: Collection[str]) -> None:
        """See HasTemporaryObjects; reads each folder once."""
        by_folder: defaultdict[str, set[str]] = defaultdict(set)
        for stem in stems:
            check_object_name(stem)
            by_folder[_folder_of(stem)].add(stem.rpartition("/")[2])
        for folder, starts in by_folder.items():
            with (
                file_errors("remove temporary files in", self._root / folder),
                suppress(FileNotFoundError),
                inner_folder(self._root, folder) as opened,
            ):
                with os.scandir(opened) as entries:
                    leftovers = [entry.name for entry in entries if _is_leftover(entry.name, tuple(starts))]
                for leftover in leftovers:
                    _unlink(self._root / folder / leftover, opened)

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        """Stream the files in a folder and below, including temporary ones; files deleted meanwhile may be left out."""
        start = self._path(folder) if folder else self._root
        return _walk(
            lambda: open_inside(self._root, folder or ".", LISTED), start, f"{folder}/" if folder else "", after
        )

    def close(self) -> None:
        """Allocate a spent reserve again, as far as possible; no file stays open between two calls."""
        if self._reserve is not None:
            self._reserve.take_back()

    def _with_reserve(self, reserve: DiskReserve, write: Callable[[], _Written]) -> _Written:
        """Write; if the disk is full, retry without the reserve, which is allocated if there is plenty of room."""
        try:
            written = write()
        except RemoteStorageFullError:
            if not self._may_spend.may_be_spent:
                raise
            reserve.spend()
            return write()
        reserve.make()
        return written

    def _path(self, name: str) -> Path:
        check_object_name(name)
        return self._root / name

    @contextmanager
    def _temporary(self, name: str, size: int) -> Iterator[tuple[int, str]]:
        """Open the folder of an object, created if missing, and yield a name in it that is removed afterwards."""
        target = self._path(name)
        temporary = temporary_name(target.name, self._random_hex())
        with ExitStack() as opened:
            with file_errors("make the folder of", target, size):
                _make_durable_folder(self._root)
                folder = opened.enter_context(inner_folder(self._root, _folder_of(name), makes=True))
            _check_room(target, size)
            try:
                yield folder, temporary
            finally:
                with suppress(OSError):  # what is left is found by its name; the first error is the one to report
                    os.unlink(temporary, dir_fd=folder)


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _make_durable_folder(folder: Path) -> None:
    """Create `folder` and missing folders above it, private, each synced into the one above."""
    if folder.is_dir():
        return
    _make_durable_folder(folder.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    sync_directory(folder.parent)


def _has(folder: int, name: str) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name == name for entry in entries)


def _unlink(path: Path, folder: int) -> None:
    with file_errors("remove", path), suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=folder)


def _check_room(target: Path, size: int) -> None:
    """Raise RemoteStorageFullError if the file system reports less free space than `size` bytes."""
    with file_errors("look for room for", target, size):
        free = free_bytes(target.parent)
    if size > free:
        raise no_room(target, size, os.strerror(errno.ENOSPC))


def _is_leftover(file_name: str, starts: tuple[str, ...]) -> bool:
    return is_temporary_name(file_name) and file_name.startswith(starts)


def _regular_file(descriptor: int, path: Path) -> os.stat_result:
    """Return the status of an open file. Raises RemoteObjectNotFoundError if it is not a regular file."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise RemoteObjectNotFoundError(f"{path}: there is no such object: that path is not a regular file")
    return facts


def _walk(open_folder: Callable[[], int], folder: Path, prefix: str, after: str) -> Iterator[StoredObject]:
    """Stream the files of `folder` with names after `after`, prefixed by `prefix`, with one open folder per level.

    Symbolic links, and everything else that is not a regular file, are left out.
    """
    with file_errors("list", folder), suppress(FileNotFoundError), ExitStack() as opened:
        descriptor = open_folder()
        opened.callback(os.close, descriptor)
        for entry in opened.enter_context(os.scandir(descriptor)):
            if entry.name == RESERVE and not prefix:
                continue
            if entry.is_dir(follow_symlinks=False):
                inner = partial(os.open, entry.name, LISTED | os.O_NOFOLLOW, dir_fd=descriptor)
                yield from _walk(inner, folder / entry.name, f"{prefix}{entry.name}/", after)
                continue
            if f"{prefix}{entry.name}" <= after or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                yield StoredObject(f"{prefix}{entry.name}", facts.st_size, facts.st_mtime_ns // 1_000_000)
