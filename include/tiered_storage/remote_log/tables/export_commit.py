"""Replace all earlier files of an interval by those of one attempt.

A commit may stop after any step, and any step may be repeated. An interval without _SUCCESS is incomplete: a commit
deletes _SUCCESS first and writes it last. An attempt whose files are already there changes nothing. A lease decides who
may commit; `still_ours` checks it before every change, and an attempt that was taken over stops there. The files that
it leaves prevent commits of overlapping intervals, and so does its marker _COMMITTING.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiered_storage.errors import RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.jobs.work_area import from_lines, to_lines
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.tables.layout import (
    COMMITTING,
    DEAD_LETTERS,
    MANIFEST,
    PART_SUFFIX,
    SUCCESS,
    TEMPORARY,
    ExportManifest,
    Interval,
    TableFolder,
    encoded,
    is_file_name,
)
from tiered_storage.remote_log.tables.overwrite_guard import OverwriteGuard
from tiered_storage.remote_log.tables.planning import TablePlan
from tiered_storage.remote_log.tables.reading import BrokenBytes


@dataclass(frozen=True, slots=True)
class IntervalCommit:
    """The commit of one interval by the attempt of that number."""

    folder: TableFolder
    interval: Interval
    attempt: int
    still_ours: Callable[[], None]

    @property
    def attempt_folder(self) -> str:
        """Where the attempt's workers write, below the export's URL."""
        return attempt_folder(self.folder, self.interval, self.attempt)

    @property
    def place(self) -> str:
        """Where the interval's folder is, for messages."""
        return f"{self.folder.place}/{self.interval.folder}"

    def begin(self) -> None:
        """Delete what earlier attempts left. Raises ConfigurationError if the folder is not this table's."""
        self.folder.claim()
        self.folder.ensure_no_overlap(self.interval)
        self._remove_left()

    def commit(self, manifest: ExportManifest, plan: TablePlan, broken: Sequence[BrokenBytes] = ()) -> bool:
        """Rename the attempt's files; return whether anything changed. `plan` is what was read, except `broken`.

        Raises ConfigurationError if records would be lost, and what the store and `still_ours` raise.
        """
        self.still_ours()
        earlier = self.folder.manifest(self.interval)
        if earlier == manifest and self._has_letters(broken) and self.is_whole(manifest):
            self._remove_left()
            return False
        if earlier is not None:
            OverwriteGuard(earlier, plan).ensure_no_fewer(manifest, broken, self._letters(), self.place)
        self.folder.ensure_no_overlap(self.interval)
        self._put(f"{TEMPORARY}/{self.attempt}/{COMMITTING}", b"")
        self._delete(SUCCESS)
        for file in manifest.files:
            self.still_ours()
            temporary = f"{self.attempt_folder}/{file.name}{PART_SUFFIX}"
            self.folder.client.move(temporary, self._path(file.name))
        named = {file.name for file in manifest.files}
        self._remove([name for name in self._names() if is_file_name(name) and name not in named])
        if broken:
            self._put(DEAD_LETTERS, to_lines(broken, BrokenBytes))
        else:
            self._delete(DEAD_LETTERS)
        self._put(MANIFEST, encoded(manifest, ExportManifest))
        if not self._has_files(manifest):
            # A check and the change after it are two steps: an attempt that was taken over may pause between them.
            raise RemoteStorageError(f"{self.place} has other files than those this export wrote: try again")
        self._put(SUCCESS, b"")
        self._remove_left()
        return True

    def is_whole(self, manifest: ExportManifest) -> bool:
        """Return whether the interval's files match `manifest` in size, and _SUCCESS is there."""
        return SUCCESS in self._names() and self._has_files(manifest)

    def _has_files(self, manifest: ExportManifest) -> bool:
        found = {name: size for name, size in self._names().items() if is_file_name(name)}
        return found == {file.name: file.size for file in manifest.files}

    def _has_letters(self, broken: Sequence[BrokenBytes]) -> bool:
        return self._names().get(DEAD_LETTERS) == (len(to_lines(broken, BrokenBytes)) if broken else None)

    def _letters(self) -> list[BrokenBytes]:
        """Return what could not be decoded when the present files were exported."""
        path, client = self._path(DEAD_LETTERS), self.folder.client
        try:
            raw = client.get_range(path, 0, client.size(path))
        except RemoteObjectNotFoundError:
            return []
        return from_lines(raw, BrokenBytes, f"{self.place}/{DEAD_LETTERS}")

    def _names(self) -> dict[str, int]:
        return self.folder.names(self.interval)

    def _path(self, name: str) -> str:
        return self.folder.path(self.interval, name)

    def _delete(self, name: str) -> None:
        self.still_ours()
        delete_object(self.folder.client, self._path(name))

    def _put(self, name: str, content: bytes) -> None:
        self.still_ours()
        self.folder.client.put(self._path(name), len(content), iter((memoryview(content),)))

    def _remove_left(self) -> None:
        """Delete the temporary files of this and earlier attempts; a later one's stay."""
        self._remove([name for name in self._names() if self._is_left(name)])

    def _is_left(self, name: str) -> bool:
        temporary, _, rest = name.partition("/")
        number = rest.partition("/")[0]
        return temporary == TEMPORARY and number.isdecimal() and int(number) <= self.attempt

    def _remove(self, names: Sequence[str]) -> None:
        self.still_ours()
        kept = self.folder.client.delete_many([self._path(name) for name in names])
        for error in kept.values():
            raise RemoteStorageError(f"{self.place}: files of an earlier export cannot be deleted: {error}") from error


def attempt_folder(folder: TableFolder, interval: Interval, attempt: int) -> str:
    """Return where the workers of that attempt write, below the export's URL."""
    return folder.path(interval, f"{TEMPORARY}/{attempt}")
