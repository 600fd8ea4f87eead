"""The layout of an exported table, and which topic it belongs to.

Below the export's URL, in a folder named as the topic:

    _table.json                      ExportedTable: whose records these are
    interval={begin}_{end}/          the records of one interval of time, UTC, the end exclusive
        {partition}-{block}-{part}.parquet   in order of offsets; `block` is where its block of offsets begins
        _dead_letters.jsonl          BrokenBytes lines: what could not be decoded; only if there is any
        _manifest.json               ExportManifest: which files belong to it
        _SUCCESS                     empty; while it exists, the files match the manifest. Only the manifest shows
                                     whether later copies may add records (not_reached)
        _temporary/{number}/         uncommitted files of an attempt
            _COMMITTING              empty; exists from before its first file is renamed, until the last one is

Parquet readers read such folder names as a column `interval`, and ignore names that begin with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.documents.json_document import JsonDocument, adapter_of

FORMAT_VERSION = 1
TABLE, MANIFEST, SUCCESS, DEAD_LETTERS, TEMPORARY = (
    "_table.json", "_manifest.json", "_SUCCESS", "_dead_letters.jsonl", "_temporary",
)  # fmt: skip
COMMITTING = "_COMMITTING"
PART_SUFFIX = ".part"
"""The suffix of an uncommitted file, so that a reader of *.parquet ignores it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = "%Y-%m-%dT%H-%M-%S"
_INTERVAL = re.compile(r"interval=(?P<begin>[^_/]+)_(?P<end>[^_/]+)")
_FILE = re.compile(r"\d{5,10}-\d{20}-\d{3,}\.parquet")
Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class Interval:
    """Record timestamps in ms, the end exclusive. Raises ConfigurationError for an empty interval."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        """Refuse an empty interval early."""
        if self.begin >= self.end:
            raise ConfigurationError(
                f"the interval from {_shown(self.begin)} to {_shown(self.end)} (exclusive) is empty: give a later end"
            )

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"interval={_shown(self.begin)}_{_shown(self.end)}"

    @classmethod
    def of_folder(cls, name: str) -> Interval | None:
        """Return the interval of the folder `name`, or None."""
        found = _INTERVAL.fullmatch(name)
        if found is None:
            return None
        begin, end = _read_time(found["begin"]), _read_time(found["end"])
        return None if begin is None or end is None or begin >= end else cls(begin, end)

    def overlaps(self, other: Interval) -> bool:
        """Return whether both have some time in common."""
        return self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of rows: its name in the interval's folder, bytes, offsets (inclusive) and timestamps (ms)."""

    name: str
    partition: int
    rows: int
    size: int
    crc32c: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets (inclusive) of a partition."""

    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """The topic whose records a table has."""

    format_version: int
    cluster_id: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """The content of an interval's folder; times are ms. It depends only on the copied records and the request, not on
    when or how often they were exported.

    `partitions` are the requested partitions of which something was copied. `not_reached` are those whose copied part
    ended within the interval: later copies may add records (late_data.py). If the request had `allow_gaps`, `missing`
    are the missing offsets among those of the files (overwrite_guard.py).
    """

    format_version: int
    begin: int
    end: int
    codec: str
    committed_only: bool
    disorder_ms: int | None
    files: tuple[ExportedFile, ...]
    dead_letters: int = 0
    not_reached: tuple[int, ...] = ()
    partitions: tuple[int, ...] = ()
    allow_gaps: bool = False
    missing: tuple[MissingOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFolder:
    """The folder of a topic's table in a store."""

    client: ObjectClient
    table: ExportedTable

    @property
    def name(self) -> str:
        """Its name below the export's URL."""
        return self.table.topic

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.client.root}/{self.name}"

    def claim(self) -> None:
        """Make sure that the folder belongs to this table; claim an empty folder.

        Raises ConfigurationError if it belongs to another table, or has files that are not a table.
        """
        found = self._read_table()
        if found is None:
            foreign = next(iter(self.client.list(self.name)), None)
            if foreign is not None and foreign.name != f"{self.name}/{TABLE}":
                raise ConfigurationError(
                    f"{self.place} is neither an exported table nor empty: it has {foreign.name} but no {TABLE}; name "
                    "another place (export.url)"
                )
            self.client.create(f"{self.name}/{TABLE}", encoded(self.table, ExportedTable))
            found = self._read_table()
        if found != self.table:
            raise ConfigurationError(
                f"{self.place} belongs to {_owner(found)}, not to {_owner(self.table)}; name another place "
                "(export.url), or move that table away"
            )

    def ensure_no_overlap(self, interval: Interval) -> None:
        """Raise ConfigurationError if an exported interval overlaps this one.

        That includes one whose commit stopped halfway, with files that readers find, or will find.
        """
        for other, name in self.contents():
            if other == interval or not other.overlaps(interval) or not _shows_records(name):
                continue
            if SUCCESS not in self.names(other):
                raise ConfigurationError(
                    f"{self.place} has {other.folder}, an unfinished export that overlaps {interval.folder}: a reader "
                    "would find records twice; export that interval again, or remove its folder if no run writes to it"
                )
            raise ConfigurationError(
                f"{self.place} already has {other.folder}, which overlaps {interval.folder}: a reader would find "
                "records twice; export the same intervals as before, or to another place (export.url)"
            )

    def is_ours(self) -> bool:
        """Return whether this table has claimed it. Raises RemoteObjectCorruptError and LaterVersionError."""
        return self._read_table() == self.table

    def contents(self) -> Iterator[tuple[Interval, str]]:
        """Yield each file of all intervals, in no order: its interval, and its name in that folder."""
        for found in self.client.list(self.name):
            folder, _, name = found.name.removeprefix(f"{self.name}/").partition("/")
            interval = Interval.of_folder(folder)
            if interval is not None:
                yield interval, name

    def path(self, interval: Interval, name: str) -> str:
        """Return the name below the export's URL of `name` in the interval's folder."""
        return f"{self.name}/{interval.folder}/{name}"

    def manifest(self, interval: Interval) -> ExportManifest | None:
        """Return the committed manifest or None. Raises RemoteObjectCorruptError and LaterVersionError."""
        return read_document(self.client, self.path(interval, MANIFEST), ExportManifest)

    def names(self, interval: Interval) -> dict[str, int]:
        """Return the names in the interval's folder, and below it, with sizes."""
        prefix = self.path(interval, "")
        return {found.name.removeprefix(prefix): found.size for found in self.client.list(prefix.rstrip("/"))}

    def _read_table(self) -> ExportedTable | None:
        return read_document(self.client, f"{self.name}/{TABLE}", ExportedTable)


def file_name(partition: int, block: int, part: int) -> str:
    """Return the name of a file of rows."""
    return f"{partition:05d}-{block:020d}-{part:03d}.parquet"


def is_file_name(name: str) -> bool:
    """Return whether `name` is one that `file_name` makes."""
    return _FILE.fullmatch(name) is not None


def _shows_records(name: str) -> bool:
    """Return whether an interval's folder with the file `name` has records, or a commit under way may add some."""
    return name == MANIFEST or is_file_name(name) or (name.startswith(f"{TEMPORARY}/") and name.endswith(COMMITTING))


def encoded(document: Document, kind: type[Document]) -> bytes:
    """Return a document's JSON, one field per line."""
    return adapter_of(kind).dump_json(document, indent=1) + b"\n"


def read_document(client: ObjectClient, name: str, kind: type[Document]) -> Document | None:
    """Read a document; None if it is not there. Raises RemoteObjectCorruptError and LaterVersionError."""
    try:
        raw = client.get_range(name, 0, client.size(name))
    except RemoteObjectNotFoundError:
        return None
    return JsonDocument(raw, f"{client.root}/{name}", FORMAT_VERSION, most_bytes=len(raw)).read(kind)


def _owner(table: ExportedTable | None) -> str:
    if table is None:
        return "nobody"
    return f"topic {table.topic} with the id {table.topic_id} of cluster {table.cluster_id}"


def _shown(time: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=time)
    except OverflowError as error:
        raise ConfigurationError(f"{time} ms since 1970 is outside the calendar (years 1 to 9999)") from error
    fraction = f".{time % 1000:03d}" if time % 1000 else ""
    return f"{moment.replace(microsecond=0, tzinfo=None).isoformat().replace(':', '-')}{fraction}Z"


def _read_time(text: str) -> int | None:
    whole, dot, fraction = text.removesuffix("Z").partition(".")
    try:
        moment = datetime.strptime(whole, _TIME).replace(tzinfo=UTC)
        return int((moment - _EPOCH).total_seconds()) * 1000 + (int(fraction) if dot else 0)
    except ValueError:
        return None
