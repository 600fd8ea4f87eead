"""Whatever was appended, copied, trimmed and expired: a reader gets what the plainest model of a log has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES
from support.remote_logs import NOW, ORDERS_0, RemoteLogFiles, copy, held_by, local_log
from support.storages import StagedStorage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from unit.tiered_storage.remote_log.modelled_logs import LAST_ENDS, Ended, ModelledLog, Step, steps, write_modelled_log

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
SHARES = st.floats(0, 1)
LIMITS = {
    "remote.log.reader.cache.memory.bytes": [64 << 20, 1000, 0],
    "remote.log.reader.cache.disk.bytes": [0, 1 << 20, 200],
    "remote.log.reader.read.ahead.bytes": [16 << 20, 300, 0],
    "remote.log.reader.threads": [10, 1],
    "remote.log.reader.metadata.max.age.ms": [1000, 0],
}
"""Whatever room a reader has, it gives the same."""


def tiered(
    files: RemoteLogFiles, model: ModelledLog, remote_log: RemoteLogManager, trimmed: float, begun: float
) -> None:
    """Copy what can be; trim a share of that locally, and let the global log start move over a share of all."""
    copy(remote_log)
    copied = [each for each in local_log(remote_log).closed_segments if each.end_offset < remote_end(remote_log)]  # type: ignore[operator]
    going = copied[: round(trimmed * len(copied))]
    if going:
        last = going[-1].end_offset
        assert last is not None
        LogDirectoryTrim().trim(ORDERS_0, going, last + 1)
    model.start = round(begun * model.stable_end)
    remote_log.context.segments.advance_log_start_offset(ORDERS_0, model.start, held_by(remote_log, "test"))


def remote_end(remote_log: RemoteLogManager) -> int:
    return max(
        (each.end_offset + 1 for each in remote_log.context.segments.list_remote_log_segments(ORDERS_0)), default=0
    )


@settings(max_examples=USUAL_EXAMPLES // 2)
@given(
    written=steps(st.integers(0, 60).map(lambda seconds: 1000 * seconds)),
    last=LAST_ENDS,
    trimmed=SHARES,
    begun=SHARES,
    data=st.data(),
)
def test_ranges_tables_and_offsets_are_those_of_the_model(
    written: list[Step], last: list[Ended], trimmed: float, begun: float, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        files, model = write_modelled_log(Path(folder), [*written, *last])
        files.properties |= {name: data.draw(st.sampled_from(values), label=name) for name, values in LIMITS.items()}
        with files.open() as remote_log:
            tiered(files, model, remote_log, trimmed, begun)
            with BlockingLogReader(remote_log.open_log_reader()) as reader:
                assert_offsets(reader, model, data.draw(st.integers(-1, 62), label="seconds"))
                start = data.draw(st.integers(model.start, model.stable_end), label="start")
                end = data.draw(st.integers(start, model.end + 1), label="end")
                assert_range(reader, model, start, end)
        files.properties["log.dirs"] = []
        with files.open() as remote_log:
            staged = StagedStorage(remote_log.context.storage)
            staged.lacks = data.draw(st.sampled_from([None, IndexKind.PRODUCER_SNAPSHOT]), label="lacks")
            inner = RemoteLogReader(replace(remote_log.context, storage=staged))
            with BlockingLogReader(inner) as reader:
                assert_remote_tier_alone(reader, model, remote_end(remote_log))


def assert_remote_tier_alone(reader: BlockingLogReader, model: ModelledLog, end: int) -> None:
    """Without the local log, the outcome of a transaction whose marker was never copied is unknown."""
    start = model.start
    if start > end:
        return
    decided = max(start, model.decided_end(end))
    assert reader.offsets(ORDERS_0, OffsetSpec.LATEST, COMMITTED).offset == decided  # type: ignore[union-attr]
    for isolation, expected in (
        (UNCOMMITTED, model.visible(start, end)),
        (COMMITTED, model.committed(start, decided)),
    ):
        assert [each.offset for each in reader.records(ORDERS_0, start, isolation=isolation)] == expected


def assert_range(reader: BlockingLogReader, model: ModelledLog, start: int, end: int) -> None:
    for isolation, expected in ((UNCOMMITTED, model.visible(start, end)), (COMMITTED, model.committed(start, end))):
        records = list(reader.records(ORDERS_0, start, end_offset=end, isolation=isolation))
        assert [each.offset for each in records] == expected
        assert [each.value for each in records] == [model.value(at) for at in expected]
        columns = ["offset", "timestamp", "value"]
        tables = list(reader.tables(ORDERS_0, start, end_offset=end, isolation=isolation, columns=columns))
        assert [at for table in tables for at in table.column("offset").to_pylist()] == expected
        assert [each for table in tables for each in table.column("timestamp").cast("int64").to_pylist()] == [
            model.timestamps[at] for at in expected
        ]
    for fetched in reader.batches(ORDERS_0, start, end_offset=end):
        assert start <= fetched.start_offset < fetched.end_offset <= min(end, model.end)
        start = fetched.end_offset
    assert start == min(end, model.end)


def assert_offsets(reader: BlockingLogReader, model: ModelledLog, seconds: int) -> None:
    epoch = 0 if model.end else -1
    for isolation, end in ((UNCOMMITTED, model.end), (COMMITTED, model.stable_end)):
        assert reader.offsets(ORDERS_0, OffsetSpec.EARLIEST, isolation) == FoundOffset(model.start, -1, epoch)
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST, isolation) == FoundOffset(end, -1, epoch)
        latest = model.latest(model.end)
        expected = None if latest is None or latest >= end else latest
        assert reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP, isolation) == found(model, expected)
        moment = max(0, NOW + 1000 * seconds)
        assert reader.offsets(ORDERS_0, moment, isolation) == found(model, model.first_at_or_after(moment, end))


def found(model: ModelledLog, offset: int | None) -> FoundOffset | None:
    return None if offset is None else FoundOffset(offset, model.timestamps[offset], 0)
