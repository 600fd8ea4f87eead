"""Objects as files in HDFS, by hdfs-native: Hadoop's RPC without Java.

An object is written under a temporary name in its own folder, one block after the other synced to the disks of all its
DataNodes (hsync), closed, and renamed; the NameNode logs the rename durably before it answers. A rename that must not
overwrite is HDFS's own: of several writers one wins. DataNodes check the checksums that are sent with the bytes, and
the client checks them when it reads.

HDFS refuses colons in names, and `.snapshot` and `.reserved` as names: in a path they are `%3A` and `%2Esnapshot`, and
`%` is `%25`.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from hdfs_native import Client, FileStatus, WriteOptions

from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.private_files import PRIVATE_FOLDER
from tiered_storage.remote_log.storage.clients.hdfs_calls import RAISED_BY_HDFS, limited, translated
from tiered_storage.remote_log.storage.clients.object_client import (
    CheckedChunks,
    StoredObject,
    WrittenObject,
    check_object_name,
    is_temporary_name,
    temporary_name,
)
from tiered_storage.remote_log.storage.clients.options import HADOOP_SETTINGS, HDFS_USER, ObjectStoreOptions

LISTED_AT_ONCE = 1000
CONCURRENT_DELETIONS = 16
HOSTS_ASKED = 3
"""How many hosts may fail to answer within the time of one call."""

_USER_VARIABLE = "HADOOP_USER_NAME"
_LONGEST_FILE_NAME = 255
_REFUSED = frozenset({"", ".", ".."})
_RESERVED = frozenset({".snapshot", ".reserved"})
_ENCODED = {"%25": "%", "%3A": ":", "%2E": "."}

_Answer = TypeVar("_Answer")


class Hdfs:
    """The ObjectClient of a folder in HDFS. Empty folders stay."""

    def __init__(
        self, url: str, options: ObjectStoreOptions, random_hex: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        """Use `url`: hdfs://host:port/folder, or hdfs://nameservice/folder of the configuration in HADOOP_CONF_DIR.

        The options' properties are settings of Hadoop's; HDFS_USER becomes the user of the whole process. Raises
        ConfigurationError if URL and options make no client, or if the process has another user already. Nothing is
        sent yet.
        """
        parsed = urlsplit(url)
        if parsed.scheme != "hdfs" or not parsed.netloc or parsed.query or parsed.fragment or parsed.username:
            raise ConfigurationError(
                f"hdfs://{parsed.hostname or ''} names no folder in HDFS: use hdfs://host:port/folder or "
                "hdfs://nameservice/folder, without credentials and options"
            )
        self._root = url.rstrip("/")
        self._folder = parsed.path.rstrip("/")
        for part in self._folder.split("/")[1:]:
            if part in _REFUSED | _RESERVED or ":" in part:
                raise ConfigurationError(
                    f"{self._root} names no folder that HDFS can have: {part!r} is not allowed between its slashes; "
                    "correct the URL"
                )
        self._seconds = options.request_timeout_ms / 1000
        self._random_hex = random_hex
        self._client = _open(parsed.netloc, options)
        self._mode_of_root: int | None = None

    @property
    def root(self) -> str:
        """The folder's URL."""
        return self._root

    @property
    def longest_part(self) -> int:
        """HDFS's own limit on a name, which a cluster may change."""
        return _LONGEST_FILE_NAME

    @property
    def has_own_clock(self) -> bool:
        """False: the NameNode may be this machine."""
        return False

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,  # noqa: ARG002 -- the NameNode logs each rename durably
        at_most: bool = False,
    ) -> WrittenObject:
        """Write an object; see ObjectClient."""
        checked = CheckedChunks(name, size, chunks, at_most=at_most)
        self._store(name, checked, overwrite=True)
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        """Write a small object unless there is one; see ObjectClient."""
        checked = CheckedChunks(name, len(content), iter((memoryview(content),)))
        return self._store(name, checked, overwrite=False)

    def move(self, name: str, target: str) -> None:
        """Rename an object; see ObjectClient."""
        path, new_path = self._path(name), self._path(target)
        folder, _, _ = new_path.rpartition("/")
        with self._hdfs_errors("rename", name):
            self._call(lambda: self._client.mkdirs(folder, self._mode(), create_parent=True))
            self._call(lambda: self._client.rename(path, new_path, overwrite=True))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of an object; see ObjectClient."""
        path = self._path(name)
        if not length:
            return b""

        def read() -> tuple[int, bytes]:
            reader = self._client.read(path)
            end = len(reader)
            return end, reader.read_range(start, length) if start + length <= end else b""

        with self._hdfs_errors("read", name):
            end, content = self._call(read)
        if len(content) != length:
            raise RemoteObjectCorruptError(
                f"{self._place(name)}: ends at byte {end}, but bytes {start} to {start + length - 1} were sent"
            )
        return content

    def size(self, name: str) -> int:
        """Return an object's size in bytes; see ObjectClient."""
        path = self._path(name)
        with self._hdfs_errors("look at", name):
            status = self._info(path)
        if status.isdir:
            raise RemoteObjectNotFoundError(f"{self._place(name)}: there is no such object: that path is a folder")
        return status.length

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete many, CONCURRENT_DELETIONS at a time; see ObjectClient. Empty folders are deleted too."""
        paths = [self._path(name) for name in names]
        with ThreadPoolExecutor(CONCURRENT_DELETIONS, thread_name_prefix="delete") as threads:
            outcomes = list(threads.map(self._why_not_deleted, names, paths))
        return {name: why for name, why in zip(names, outcomes, strict=True) if why is not None}

    def _why_not_deleted(self, name: str, path: str) -> RemoteStorageError | None:
        try:
            with self._hdfs_errors("remove", name):
                self._call(lambda: self._client.delete(path))
        except RemoteStorageError as error:
            return error
        return None

    def discard_unfinished_many(self, stems: Collection[str]) -> None:
        """See HasTemporaryObjects; reads each folder once."""
        by_folder: defaultdict[str, list[str]] = defaultdict(list)
        for stem in stems:
            folder, _, start = self._path(stem).rpartition("/")
            by_folder[folder].append(start)
        for folder, starts in by_folder.items():
            with self._hdfs_errors("remove temporary files in", ""):
                for status in self._statuses(folder, recursive=False):
                    file_name = status.path.rpartition("/")[2]
                    if not status.isdir and is_temporary_name(file_name) and file_name.startswith(tuple(starts)):
                        self._call(partial(self._client.delete, status.path))

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        """Stream the files in a folder and below, also temporary ones; those deleted meanwhile may be left out."""
        start = self._path(folder) if folder else self._folder or "/"
        with self._hdfs_errors("list", folder):
            for status in self._statuses(start, recursive=True):
                name = _decoded(status.path[len(self._folder) + 1 :])
                if not status.isdir and status.path != start and name > after:
                    yield StoredObject(name, status.length, status.modification_time)

    def close(self) -> None:
        """Do nothing: connections close with the client."""

    def _statuses(self, folder: str, *, recursive: bool) -> Iterator[FileStatus]:
        statuses = self._client.list_status(folder, recursive)
        while page := self._call(partial(_page, statuses)):
            yield from page

    def _store(self, name: str, checked: CheckedChunks, *, overwrite: bool) -> bool:
        """Write `checked` under a temporary name and rename it; return False if the object exists already."""
        path = self._path(name)
        temporary = temporary_name(path, self._random_hex())
        is_renamed = False
        try:
            with self._hdfs_errors("write", name, checked):
                is_renamed = self._rename(self._fill(temporary, checked), path, overwrite=overwrite)
            return is_renamed
        finally:
            if not is_renamed:
                with suppress(*RAISED_BY_HDFS):  # what is left is found by its name; the first error is reported
                    self._call(lambda: self._client.delete(temporary))

    def _fill(self, path: str, checked: CheckedChunks) -> FileStatus:
        """Write the file `path`, on the disks of its DataNodes when this returns."""
        options = WriteOptions(permission=self._mode() & 0o666, create_parent=True)
        writer = self._call(lambda: self._client.create(path, options))
        left = block_size = self._info(path).blocksize or sys.maxsize
        for piece in checked:
            unwritten = piece
            while unwritten:
                part, unwritten = unwritten[:left], unwritten[left:]
                self._call(partial(writer.write, part))
                left -= len(part)
                if not left:
                    # hsync covers the last block only.
                    self._call(writer.hsync)
                    left = block_size
        if left != block_size:
            self._call(writer.hsync)
        self._call(writer.close)
        status = self._info(path)
        if status.length != checked.size:
            raise RemoteObjectCorruptError(f"{path}: {checked.size} bytes were sent and {status.length} are there")
        return status

    def _rename(self, written: FileStatus, path: str, *, overwrite: bool) -> bool:
        try:
            self._call(lambda: self._client.rename(written.path, path, overwrite))
        except FileExistsError:
            if overwrite:
                raise
            return False
        except FileNotFoundError:
            # The rename was repeated after a lost connection, or a process that renamed first removed our temporary
            # file as an orphan.
            found = self._info(path)
            is_ours = (found.length, found.modification_time) == (written.length, written.modification_time)
            if overwrite and not is_ours:
                raise
            return is_ours
        return True

    def _mode(self) -> int:
        """The rights of the root, which is created private if it is missing."""
        if self._mode_of_root is None:
            folder = self._folder or "/"
            try:
                status = self._info(folder)
            except FileNotFoundError:
                self._call(lambda: self._client.mkdirs(folder, PRIVATE_FOLDER, create_parent=True))
                status = self._info(folder)
            if not status.isdir:
                raise ConfigurationError(f"{self._root} cannot hold a store: it is a file; name a folder")
            self._mode_of_root = status.permission & 0o777
        return self._mode_of_root

    def _info(self, path: str) -> FileStatus:
        return self._call(lambda: self._client.get_file_info(path))

    def _call(self, call: Callable[[], _Answer]) -> _Answer:
        return limited(call, self._seconds)

    def _path(self, name: str) -> str:
        check_object_name(name)
        return f"{self._folder}/{_encoded(name)}"

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _hdfs_errors(self, doing: str, name: str, source: CheckedChunks | None = None) -> Iterator[None]:
        """Translate errors; those of `source`, the chunks of a write, pass through."""
        try:
            yield
        except RAISED_BY_HDFS as error:
            if source is not None and source.failure is not None:
                raise
            raise translated(error, doing, self._place(name), is_write=source is not None) from error


class _ProcessUser:
    """The one user of all clients of this process.

    hdfs-native ignores the user in a URL, and reads the environment whenever it connects.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = ""
        self._user: str | None = None

    def become(self, user: str, netloc: str) -> None:
        """Be `user`, or that of the environment if it is empty. Raises ConfigurationError if another one is in use."""
        with self._lock:
            if self._user is None:
                self._own = os.environ.get(_USER_VARIABLE, "")
                self._user = user or self._own
                if user:
                    os.environ[_USER_VARIABLE] = user
            elif (wanted := user or self._own) != self._user:
                raise ConfigurationError(
                    f"hdfs://{netloc}: this process cannot be {_shown(wanted)} in HDFS: it is {_shown(self._user)} "
                    "already, and hdfs-native knows one user a process. If the login was corrected, restart this "
                    "process. If another HDFS has the other user, give both clusters' Airflow connections the same "
                    "login, or give one of them an API server of its own"
                )


_PROCESS_USER = _ProcessUser()


def _shown(user: str) -> str:
    return f"the user {user!r}" if user else "the process's own user"


def _open(netloc: str, options: ObjectStoreOptions) -> Client:
    settings = {
        # A host that does not answer must leave time for the next one.
        "dfs.client.socket-timeout": str(options.request_timeout_ms // HOSTS_ASKED),
        "dfs.client.failover.max.attempts": str(options.max_retries),
        "dfs.client.failover.sleep.base.millis": "100",
        "dfs.client.failover.sleep.max.millis": "2000",
    } | {name: value for name, value in options.properties.items() if name.startswith(HADOOP_SETTINGS)}
    _PROCESS_USER.become(settings.pop(HDFS_USER, ""), netloc)
    try:
        return Client(f"hdfs://{netloc}", settings)
    except RAISED_BY_HDFS as error:
        raise ConfigurationError(
            f"hdfs://{netloc}: no client can be made ({error}): give host and port of the NameNode, or for a name "
            "service set HADOOP_CONF_DIR to the folder of core-site.xml and hdfs-site.xml"
        ) from error


def _page(statuses: Iterator[FileStatus]) -> list[FileStatus]:
    """Return the next LISTED_AT_ONCE; a folder that is missing, or was deleted meanwhile, is empty."""
    page: list[FileStatus] = []
    while len(page) < LISTED_AT_ONCE:
        with suppress(FileNotFoundError):
            status = next(statuses, None)
            if status is None:
                break
            page.append(status)
    return page


def _encoded(name: str) -> str:
    parts = name.replace("%", "%25").replace(":", "%3A").split("/")
    return "/".join(f"%2E{part[1:]}" if part in _RESERVED else part for part in parts)


def _decoded(path: str) -> str:
    return re.sub("%25|%3A|%2E", lambda found: _ENCODED[found.group()], path)
