"""The export of an interval of a topic as a job in groups; jobs/groups.py has its files in the work area.

A task is a block of offsets of one partition, and a result is an ExportOutcome. The limits of a block depend only on
the offsets, so its files are the same whatever segments hold them. Workers read the store and write files under
temporary names; the submitter of the job commits them (export_commit.py).

Description, tasks and results name their attempt. If two exports were written to one folder, each refuses the files of
the other: records of one table must never get into another.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from pydantic import ConfigDict

from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, TieredStorageError
from tiered_storage.remote_log.jobs.groups import GroupResults, JobDescription, JobFailure, JobFolder, grouped
from tiered_storage.remote_log.jobs.progress import JobSize, ProgressLog
from tiered_storage.remote_log.jobs.throttle import NO_QUOTA, Quota, QuotaLimit, RateLimit
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.storage.clients.object_client import PIECE_BYTES, ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.layout import PART_SUFFIX, ExportedFile, ExportManifest, Interval, file_name
from tiered_storage.remote_log.tables.parquet import DEFAULT_CODEC, LocalFile, check_codec, write_files
from tiered_storage.remote_log.tables.planning import TableRange
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery, ensure_some_rows
from tiered_storage.remote_log.tables.reading import BrokenBytes, read_range

BLOCK_OFFSETS = 1_000_000
"""How many offsets of a partition one task reads; with another number the files differ."""

NO_LIMIT = RateLimit()
MOST_BROKEN = 10_000
"""How many batches of a block may be dead letters; a block with more is not exported."""

_BYTES_AS_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An interval of a topic, or of some of its partitions: the target below `url`, the codec and the file sizes.

    The times of `query` are those of `interval`. Raises ConfigurationError for invalid values.
    """

    query: TableQuery
    interval: Interval
    url: str
    codec: str = DEFAULT_CODEC
    block_offsets: int = BLOCK_OFFSETS
    allow_gaps: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values early."""
        check_codec(self.codec)
        ensure_some_rows(self.table_query)

    def again(self, interval: Interval, manifest: ExportManifest) -> ExportRequest:
        """Return the export of another interval of the same table, with the options of `manifest`."""
        rows = RowFilter(interval.begin, interval.end, manifest.committed_only, manifest.disorder_ms)
        query = replace(self.query, rows=rows)
        return replace(self, query=query, interval=interval, codec=manifest.codec, allow_gaps=manifest.allow_gaps)

    @property
    def table_query(self) -> TableQuery:
        """The query of the interval's records."""
        rows = replace(self.query.rows, first_timestamp=self.interval.begin, end_timestamp=self.interval.end)
        return replace(self.query, rows=rows)


@dataclass(frozen=True, slots=True)
class ExportTask:
    """The copied offsets of one partition from `block` on, at most BLOCK_OFFSETS of them.

    `attempt` is that of its job; empty before the job is written.
    """

    partition: int
    block: int
    ranges: tuple[TableRange, ...]
    attempt: str = ""
    __pydantic_config__: ClassVar[ConfigDict] = _BYTES_AS_BASE64

    @property
    def size(self) -> int:
        """Approximately how many bytes of segments it reads."""
        return sum(each.size for each in self.ranges)


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """A worker's result for one block: files, and what could not be decoded; or why it failed."""

    partition: int
    block: int
    files: tuple[ExportedFile, ...] = ()
    broken: tuple[BrokenBytes, ...] = ()
    failure: JobFailure | None = None
    seconds: float = 0.0
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class ExportJobDescription(JobDescription):
    """What every worker needs: the target, the row filter, and the codec."""

    export_url: str
    export_folder: str
    rows: RowFilter
    codec: str

    @property
    def attempt(self) -> str:
        """Where the attempt's files go; no other attempt writes there."""
        return f"{self.export_url}/{self.export_folder}"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One attempt at an export; `attempt` is where its files go."""

    files: JobFolder
    groups: int
    attempt: str

    @classmethod
    def write(
        cls,
        work: WorkArea,
        folder: str,
        tasks: Iterable[ExportTask],
        *,
        export_url: str,
        export_folder: str,
        rows: RowFilter,
        codec: str,
        quota: Quota = NO_QUOTA,
    ) -> ExportJob:
        """Write the job into the work area, holding only one group in memory."""
        description = ExportJobDescription(0, export_url, export_folder, rows, codec)
        files, count = JobFolder.of(work, folder), 0
        group_bytes: list[int] = []
        for group in grouped(tasks, lambda each: (each.partition, each.block), lambda each: each.size):
            files.write_tasks(count, (replace(each, attempt=description.attempt) for each in group), ExportTask)
            group_bytes.append(sum(each.size for each in group))
            count += 1
        files.describe(replace(description, groups=count, quota=quota, group_bytes=tuple(group_bytes)))
        return cls(files, count, description.attempt)

    def run_group(
        self,
        number: int,
        storage: RemoteStorageManager,
        target: ObjectClient,
        description: ExportJobDescription,
        on_moved: OnMoved = unreported,
        limit: RateLimit = NO_LIMIT,
    ) -> int:
        """Export the blocks of one group within `limit`; return how many succeeded.

        `on_moved` gets bytes and blocks as they are done.

        Raises ConfigurationError if `description` or the group belongs to another attempt.
        """
        self._ensure_own(description)
        tasks = self._tasks(number)
        results = GroupResults(self.files, number, ExportOutcome)
        done = 0
        with ProgressLog(self.files, number) as progress:

            def moved(size: int, segments: int = 0, /) -> None:
                progress.moved(size)
                limit.spend(size)
                on_moved(size, segments)

            for task in tasks:
                outcome = replace(_exported(task, storage, target, description, moved), attempt=self.attempt)
                done += outcome.failure is None
                results.add(outcome)
                progress.ended()
                moved(0, 1)
            results.write()
        return done

    def size_of(self, tasks: Sequence[ExportTask]) -> JobSize:
        """Return the size of `tasks`, those of this job."""
        return JobSize(self.groups, len(tasks), sum(task.size for task in tasks))

    def outcomes(self) -> Iterator[ExportOutcome]:
        """Yield the outcome of every block; a block without a result of this attempt counts as failed.

        Raises ConfigurationError if another export was written to the folder.
        """
        for number in range(self.groups):
            tasks = self._tasks(number)
            results = [each for each in self.files.results(number, ExportOutcome) if each.attempt == self.attempt]
            known = {(outcome.partition, outcome.block) for outcome in results}
            yield from results
            for task in tasks:
                if (task.partition, task.block) not in known:
                    died = JobFailure("", "its worker died before it was written", retriable=True)
                    yield ExportOutcome(task.partition, task.block, failure=died, attempt=self.attempt)

    def _tasks(self, number: int) -> list[ExportTask]:
        tasks = self.files.tasks(number, ExportTask)
        for task in tasks:
            self._ensure_own(task)
        return tasks

    def _ensure_own(self, found: ExportTask | ExportJobDescription) -> None:
        if found.attempt != self.attempt:
            raise ConfigurationError(
                f"{self.files.work.url}/{self.files.folder} has the export to {found.attempt} instead of that to "
                f"{self.attempt}: two exports were written to one folder; give each a folder of its own"
            )


def export_tasks(ranges: Iterable[TableRange], block_offsets: int = BLOCK_OFFSETS) -> Iterator[ExportTask]:
    """Yield a task for each block with offsets of `ranges`, which are in order of partition and offset.

    Raises ConfigurationError if `block_offsets` is less than 1.
    """
    if block_offsets < 1:
        raise ConfigurationError(f"blocks of {block_offsets} offsets: give 1 or more")
    parts = (
        (each.segment.topic_id_partition.partition, block, part)
        for each in ranges
        for block in range(each.start_offset // block_offsets * block_offsets, each.end_offset + 1, block_offsets)
        if (part := each.within(block, block + block_offsets - 1)) is not None
    )
    for (partition, block), of_block in groupby(parts, lambda part: part[:2]):
        yield ExportTask(partition, block, tuple(part for _, _, part in of_block))


def _exported(
    task: ExportTask,
    storage: RemoteStorageManager,
    target: ObjectClient,
    description: ExportJobDescription,
    on_moved: OnMoved,
) -> ExportOutcome:
    begun = time.monotonic()
    broken: list[BrokenBytes] = []
    files: list[ExportedFile] = []
    columns = TableColumns()

    def take(found: BrokenBytes) -> None:
        if len(broken) == MOST_BROKEN:
            raise RemoteObjectCorruptError(
                f"{found.object}: more than {MOST_BROKEN} batches of the block could not be decoded, too many for dead "
                "letters: 'tiered-storage audit --deep' shows what is wrong, and 'tiered-storage repair --deep' copies "
                "it again if the local log still has it"
            )
        broken.append(found)

    def rows() -> Iterator[object]:
        for each in task.ranges:
            yield from read_range(each, description.rows, storage, columns, on_moved=on_moved, on_broken=take)

    try:
        with TemporaryDirectory(prefix="remote-log-export-") as folder:
            paths = Path(folder)
            for local in write_files(rows(), lambda part: paths / f"{part}", description.codec):
                files.append(_uploaded(local, task, target, description.export_folder))
                local.path.unlink()
    except (TieredStorageError, OSError) as error:
        failure = JobFailure.of(error)
        return ExportOutcome(task.partition, task.block, failure=failure, seconds=time.monotonic() - begun)
    seconds = time.monotonic() - begun
    return ExportOutcome(task.partition, task.block, tuple(files), tuple(broken), seconds=seconds)


def _uploaded(local: LocalFile, task: ExportTask, target: ObjectClient, folder: str) -> ExportedFile:
    name = file_name(task.partition, task.block, local.part)
    size = local.path.stat().st_size
    written = target.put(f"{folder}/{name}{PART_SUFFIX}", size, _pieces(local.path))
    return ExportedFile(
        name, task.partition, local.rows, written.size, written.crc32c, local.first_offset, local.last_offset
    )


def _pieces(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while length := file.readinto(buffer):
            yield buffer[:length]


def run_export_groups(access: JobAccess, numbers: Sequence[int]) -> int:
    """Export the blocks of the groups `numbers` of a job, as one of its workers; return how many were written."""
    with opened_job(access, ExportJobDescription) as opened:
        description = opened.description
        with closing(open_object_client(description.export_url, access.options)) as target:
            job = ExportJob(opened.folder, description.groups, description.attempt)
            limit = QuotaLimit(description.share(numbers))
            return sum(job.run_group(each, opened.storage, target, description, limit=limit) for each in numbers)
