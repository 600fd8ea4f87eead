"""Objects in S3, Google Cloud Storage or Azure Blob Storage, by obstore.

Tested against S3 servers and Azurite. gs:// uses the same code through obstore's own class and is untested: no
server for it was available.

A large object is uploaded in parts of 8 MiB, a few at a time, and becomes visible when the last one is complete. If
that fails, the upload is aborted. Uploads of killed processes, and parts that arrive after the abort, stay in the
bucket, invisible to listings, until a lifecycle rule of the bucket (AbortIncompleteMultipartUpload on S3) removes them:
set one. Azure removes them after a week by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice

import obstore
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

from tiered_storage.errors import (
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
)
from tiered_storage.remote_log.storage.clients.object_client import (
    MAX_NAME_BYTES,
    CheckedChunks,
    StoredObject,
    WrittenObject,
    check_object_name,
    checked_names,
)
from tiered_storage.remote_log.storage.clients.obstore_opening import (
    RAISED_BY_OBSTORE,
    checked_url,
    names_endpoint,
    open_obstore,
)
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

PART_BYTES = 8 << 20
MAX_CONCURRENT_PARTS = 4
"""With two parts being filled and passed on, an upload holds at most 6 parts in memory: 48 MiB."""

CONCURRENT_DELETIONS = 16
"""Not every server supports bulk deletion, so objects are deleted one by one, this many at a time."""

_MAX_REASON = 600


class ObjectStore:
    """The ObjectClient of a bucket, or of a part of one."""

    def __init__(self, url: str, options: ObjectStoreOptions) -> None:
        """Use `url`: s3://bucket/prefix, az://container/prefix, or gs://bucket/prefix (untested). Nothing is sent yet.

        Raises ConfigurationError if URL and options make no store.
        """
        self._root = checked_url(url)
        self._endpoint = options.endpoint
        self._conditional = options.conditional_writes
        self._has_own_clock = not names_endpoint(options)
        self._store = open_obstore(self._root, options)

    @property
    def root(self) -> str:
        """The URL of the bucket and the prefix in it."""
        return self._root

    @property
    def longest_part(self) -> int:
        """Only the whole name is limited; see object_names.py."""
        return MAX_NAME_BYTES

    @property
    def has_own_clock(self) -> bool:
        """Whether it is the clock of AWS, Google or Azure: an endpoint of the user's may be this machine."""
        return self._has_own_clock

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,  # noqa: ARG002 -- a store is asked for each object alone
        at_most: bool = False,
    ) -> WrittenObject:
        """Write an object; see ObjectClient. Each part is sent with its SHA-256; the size is checked afterwards."""
        check_object_name(name)
        checked = CheckedChunks(name, size, chunks, at_most=at_most)
        try:
            self._upload(name, _parts(checked, size))
        except RAISED_BY_OBSTORE as error:
            if checked.failure is not None:
                raise checked.failure  # noqa: B904 -- where the two differ, the store's stays as its context
            raise self._translated(error, "write", name) from error
        self._ensure_there(name, checked.size)
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        """Write a small object unless it exists; see ObjectClient. S3 servers must support `If-None-Match: *`.

        The size is checked afterwards, as by `put`: a lost commit marker would only be found by an audit.

        Without conditional writes, two creators may both find no object, and the later one overwrites the other's. Each
        then reads the object back. Both may return True if one reads before the other writes.
        """
        check_object_name(name)
        if not self._conditional:
            return self._create_unconditionally(name, content)
        with self._store_errors("create", name):
            try:
                obstore.put(self._store, name, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        self._ensure_there(name, len(content))
        return True

    def _ensure_there(self, name: str, sent: int) -> None:
        """Raise RemoteStorageError unless the store has an object of that size (bytes), whose write it acknowledged."""
        try:
            found = self.size(name)
        except RemoteObjectNotFoundError as error:
            raise RemoteObjectNotFoundError(f"{error}; yet the store acknowledged {sent} bytes") from error
        if found != sent:
            raise RemoteObjectCorruptError(f"{self._place(name)}: {sent} bytes were sent and {found} are there")

    def _create_unconditionally(self, name: str, content: bytes) -> bool:
        try:
            self.size(name)
        except RemoteObjectNotFoundError:
            with self._store_errors("create", name):
                obstore.put(self._store, name, content, use_multipart=False)
                return obstore.get(self._store, name).bytes().to_bytes() == content
        return False

    def move(self, name: str, target: str) -> None:
        """Copy an object within the store, then delete the original; see ObjectClient. S3 copies up to 5 GB at once."""
        checked_names([name, target])
        with self._store_errors("copy", name):
            obstore.copy(self._store, name, target, overwrite=True)
        self._delete(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of an object in one request; see ObjectClient."""
        check_object_name(name)
        if not length:
            return b""
        with self._store_errors("read", name):
            content = obstore.get_range(self._store, name, start=start, length=length).to_bytes()
        if len(content) != length:
            raise self._too_short(name, start + len(content))
        return content

    def size(self, name: str) -> int:
        """Return an object's size in bytes; see ObjectClient."""
        check_object_name(name)
        with self._store_errors("look at", name):
            return obstore.head(self._store, name)["size"]

    def _delete(self, name: str) -> None:
        try:
            obstore.delete(self._store, name)
        except FileNotFoundError as error:
            if _lacks_bucket(error):
                raise self._translated(error, "remove", name) from error
        except RAISED_BY_OBSTORE as error:
            raise self._translated(error, "remove", name) from error

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete many, CONCURRENT_DELETIONS at a time; see ObjectClient."""
        checked_names(names)
        with ThreadPoolExecutor(CONCURRENT_DELETIONS, thread_name_prefix="delete") as threads:
            outcomes = list(threads.map(self._why_not_deleted, names))
        return {name: why for name, why in zip(names, outcomes, strict=True) if why is not None}

    def _why_not_deleted(self, name: str) -> RemoteStorageError | None:
        try:
            self._delete(name)
        except RemoteStorageError as error:
            return error
        return None

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        """Stream the objects in a folder and below, by the thousand; see ObjectClient."""
        if folder:
            check_object_name(folder)
        with self._store_errors("list", folder):
            for page in obstore.list(self._store, folder or None, offset=after or None, chunk_size=1000):
                for found in page:
                    changed = round(found["last_modified"].timestamp() * 1000)
                    yield StoredObject(found["path"], found["size"], changed)

    def close(self) -> None:
        """Do nothing: idle connections close by themselves."""

    def _upload(self, name: str, parts: Iterator[bytearray]) -> None:
        begun = list(islice(parts, 2))
        if len(begun) < 2:
            obstore.put(self._store, name, b"".join(begun), use_multipart=False)
            return
        all_parts = chain(begun, parts)
        obstore.put(self._store, name, all_parts, chunk_size=PART_BYTES, max_concurrency=MAX_CONCURRENT_PARTS)

    def _place(self, name: str) -> str:
        place = f"{self._root}/{name}" if name else self._root
        return f"{place} at {self._endpoint}" if self._endpoint else place

    def _too_short(self, name: str, end: int) -> RemoteObjectCorruptError:
        return RemoteObjectCorruptError(f"{self._place(name)}: ends at or before byte {end}, yet more was sent")

    @contextmanager
    def _store_errors(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except RAISED_BY_OBSTORE as error:
            raise self._translated(error, doing, name) from error

    def _translated(self, error: Exception, doing: str, name: str) -> RemoteStorageError:
        """Return our error for obstore's, with only its first line: the others repeat it for Rust developers."""
        place = self._place(name)
        reason = " ".join(str(error).partition("\n\nDebug source")[0].split())[:_MAX_REASON]
        for is_case, error_class, advice in _CASES:
            if is_case(error):
                return error_class(f"{place}: could not {doing} it: {advice} ({reason})")
        return RemoteStorageError(f"{place}: could not {doing} it ({reason})")


def _mentions(*marks: str) -> Callable[[Exception], bool]:
    """Return a test for errors whose text has one of `marks`: obstore offers no other way to distinguish them."""
    return lambda error: any(mark in str(error) for mark in marks)


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    # A refused listing shows no other sign.
    return "status code: 401 " in str(error) or "status code: 403 " in str(error)


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError)


_lacks_bucket = _mentions(
    "NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist", "The specified container does not exist"
)

_CASES: tuple[tuple[Callable[[Exception], bool], type[RemoteStorageError], str], ...] = (
    (_mentions("ExpiredToken", "InvalidToken"), RemoteStorageRefusedError, "the credentials have expired"),
    (
        _mentions("/latest/api/token", "/latest/meta-data", "169.254.170.2", "/computeMetadata/"),
        RemoteStorageRefusedError,
        "no credentials are set, and this machine has none of its own",
    ),
    (
        _mentions("InvalidCertificate("),
        RemoteStorageRefusedError,
        "its TLS certificate is not valid here, check rsm.config.ca.bundle and the endpoint's host name",
    ),
    # What gives obstore the credentials raised it: aws_credentials.py.
    (_mentions("credential provider: RemoteStorageError:"), RemoteStorageError, "no credentials for now"),
    (_is_refusal, RemoteStorageRefusedError, "refused, check credentials and rights"),
    (_lacks_bucket, RemoteObjectNotFoundError, "its bucket does not exist, make it or correct the URL"),
    (_is_missing, RemoteObjectNotFoundError, "there is no such object"),
    (
        _mentions("416 Range Not Satisfiable", "Wanted range starting at"),
        RemoteObjectCorruptError,
        "it ends before that",
    ),
    (
        _mentions("507 Insufficient Storage", "StorageFull", "QuotaExceeded"),
        RemoteStorageFullError,
        "no room: free some space, then try again",
    ),
)


def _parts(chunks: Iterator[memoryview], size: int) -> Iterator[bytearray]:
    """Gather chunks of any size, at most `size` bytes in all, into parts of the upload, each in memory of its own."""
    left = size
    part, filled = bytearray(min(PART_BYTES, left)), 0
    for chunk in chunks:
        while chunk:
            taken = min(len(chunk), len(part) - filled)
            part[filled : filled + taken] = chunk[:taken]
            filled += taken
            chunk = chunk[taken:]  # noqa: PLW2901 -- what is left of it begins the next part
            if filled == len(part):
                yield part
                left -= filled
                part, filled = bytearray(min(PART_BYTES, left)), 0
    if filled:
        del part[filled:]
        yield part
