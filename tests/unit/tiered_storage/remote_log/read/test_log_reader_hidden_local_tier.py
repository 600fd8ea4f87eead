"""A local tier that cannot be read just now hides nothing remote, and what only it might have is never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.remote_logs import NOW, ORDERS_0, RemoteLogFiles, a_copied_remote_log, held_by, move_log_start, records
from tiered_storage.errors import (
    InvalidLogDirectoryError,
    LogDirectoryLockedError,
    OffsetOutOfRangeError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec, Tier
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog

LOCKED = LogDirectoryLockedError("a broker has it")
HOUR = 3_600_000


@dataclass(frozen=True)
class HidingSource(LogDirectorySource):
    """A source whose log directories cannot be read while `hides` holds an error."""

    hides: tuple[list[Exception], ...] = ()

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        for error in self.hides[0]:
            raise error
        return super().partition(partition)


@dataclass(frozen=True)
class Site:
    """A reader of offsets 0 to 34, all local and 0 to 29 remote; what is in `hides` hides the local ones."""

    files: RemoteLogFiles
    remote_log: RemoteLogManager
    reader: BlockingLogReader
    hides: list[Exception]


@contextmanager
def a_site(root: Path, max_age_ms: int = 0, *, may_be_hidden: bool = True) -> Iterator[Site]:
    files, hides = a_copied_remote_log(root, remote_log_reader_metadata_max_age_ms=max_age_ms), list[Exception]()
    with files.open() as log:
        source = HidingSource(log.context.settings.log_dirs, hides=(hides,))
        inner = RemoteLogReader(replace(log.context, source=source), local_may_be_hidden=may_be_hidden)
        with BlockingLogReader(inner) as reader:
            yield Site(files, log, reader, hides)


@pytest.fixture(autouse=True)
def _snapshots_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered_storage.remote_log.read.partition_snapshot.AGE_PER_SNAPSHOT", 0)


@pytest.mark.parametrize("start", [0, 25, 30, 33])
def test_a_read_returns_remote_records_before_the_error_of_the_hidden_tier(tmp_path: Path, start: int) -> None:
    with a_site(tmp_path) as site:
        site.hides.append(LOCKED)
        found = []
        with pytest.raises(LogDirectoryLockedError):
            for each in site.reader.records(ORDERS_0, start, end_offset=35):
                found.append(each)  # noqa: PERF402 - what comes before the error counts
        assert found == records(start, 30)
        assert list(site.reader.records(ORDERS_0, min(start, 30))) == records(min(start, 30), 30)


def test_a_directory_locked_during_a_read_does_not_count_as_lost(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        steps = site.reader.batches(ORDERS_0, 20)
        assert next(steps).tier is Tier.LOCAL
        site.hides.append(LOCKED)
        with pytest.raises(LogDirectoryLockedError):
            list(steps)


def test_a_lost_object_is_an_error_also_while_the_local_tier_is_hidden(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        site.hides.append(LOCKED)
        site.files.objects(".log")[0].unlink()
        with pytest.raises(RemoteObjectNotFoundError):
            next(site.reader.records(ORDERS_0, 5))


def test_offsets_below_the_global_log_start_are_out_of_range_while_the_tier_is_hidden(tmp_path: Path) -> None:
    with a_site(tmp_path) as site:
        move_log_start(site.remote_log, 10, held_by(site.remote_log, "test"))
        site.hides.append(LOCKED)
        with pytest.raises(OffsetOutOfRangeError):
            next(site.reader.records(ORDERS_0, 5))
        with pytest.raises(LogDirectoryLockedError):
            next(site.reader.records(ORDERS_0, 36))


def test_a_tier_in_sight_again_is_read_whatever_the_age_of_the_view(tmp_path: Path) -> None:
    with a_site(tmp_path, max_age_ms=HOUR) as site:
        site.hides.append(LOCKED)
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 30)
        site.hides.clear()
        assert list(site.reader.records(ORDERS_0, 33)) == records(33, 35)
        with pytest.raises(OffsetOutOfRangeError):
            list(site.reader.records(ORDERS_0, 36))


@pytest.mark.parametrize("isolation", list(Isolation))
def test_offsets_that_the_hidden_tier_cannot_change_are_reported(tmp_path: Path, isolation: Isolation) -> None:
    with a_site(tmp_path) as site:
        site.hides.append(PermissionError("not ours"))
        assert site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST, isolation) == FoundOffset(0, -1, 0)
        assert site.reader.offsets(ORDERS_0, OffsetSpec.LATEST_TIERED, isolation) == FoundOffset(29, -1, 0)
        pending = site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST_PENDING_UPLOAD, isolation)
        assert pending == FoundOffset(30, -1, 0)
        assert site.reader.offsets(ORDERS_0, NOW + 29_000, isolation) == FoundOffset(29, NOW + 29_000, 0)
        for spec in (OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, OffsetSpec.EARLIEST_LOCAL, NOW + 29_001):
            with pytest.raises(InvalidLogDirectoryError, match="not ours"):
                site.reader.offsets(ORDERS_0, spec, isolation)


def test_a_locked_directory_is_an_error_unless_the_local_tier_may_be_hidden(tmp_path: Path) -> None:
    with a_site(tmp_path, may_be_hidden=False) as site:
        site.hides.append(LOCKED)
        with pytest.raises(LogDirectoryLockedError):
            next(site.reader.records(ORDERS_0, 0))
