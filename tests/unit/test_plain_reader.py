"""The oracle of reads reads each offset once, from whichever tier has it, along the lineage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from support.command_line import run_on
from support.metadata_stores import a_step
from support.plain_reader import FetchedBatches, PlainReader, below
from support.remote_logs import (
    BATCH_BYTES,
    BATCH_RECORDS,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    begin,
    copy,
    held_by,
    offsets_read,
    record,
    records,
    rewrite_segment,
    segments_of,
)
from tiered_storage.errors import ConfigurationError, OffsetOutOfRangeError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.read.read_values import Tier
from tiered_storage.remote_log.source import log_directory_segment
from unit.plain_reads import first_offset, only_remote, reader_of, trim

# ------------------------------------------------------------------------------------------------------ across tiers


@pytest.mark.parametrize("local_start", [0, 10, 20, 30])
def test_from_any_offset_every_record_is_read_once_wherever_it_is(tmp_path: Path, local_start: int) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, local_start)

        for start in range(36):
            assert offsets_read(remote_log, start) == list(range(start, 35))


def test_each_fetch_says_which_tier_it_came_from_and_where(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 20)
        reader = reader_of(remote_log)
        remote, local = reader.fetch(17), reader.fetch(27)
        [_, second, _] = segments_of(remote_log)

    assert (remote.tier, local.tier) == (Tier.REMOTE, Tier.LOCAL)
    assert remote.source.endswith(f"{second.start_offset:020}-{second.segment_id.id}.log")
    assert local.source == str(files.local_segments()[0].log_path)
    assert (first_offset(remote), first_offset(local)) == (15, 25)
    assert (remote.source_position, local.source_position) == (BATCH_BYTES, BATCH_BYTES)


def test_a_fetch_is_whole_batches_as_they_were_written(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    written = [segment.log_path.read_bytes() for segment in files.local_segments()]
    with files.open() as remote_log:
        trim(remote_log, 10)
        reader = reader_of(remote_log)

        # Here a chunk of the remote tier has one batch; a local read has all up to its segment's end.
        assert reader.fetch(0).content == written[0][:BATCH_BYTES]
        assert reader.fetch(7).content == written[0][BATCH_BYTES:]
        assert reader.fetch(10).content == written[1]
        assert reader.fetch(17).content == written[1][BATCH_BYTES:]


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("is_local", [True, False])
def test_an_offset_inside_a_batch_is_found_whatever_its_codec(
    tmp_path: Path, compression: Compression, is_local: bool
) -> None:
    files = a_remote_log(tmp_path)
    for segment in files.local_segments()[:3]:
        base = segment.base_offset
        rewrite_segment(segment.log_path, [encode_batch(records(base, base + 10), compression)])
        segment.offset_index_path.unlink()
        segment.time_index_path.unlink()
    with files.open() as remote_log:
        assert copy(remote_log).failures == ()
        if not is_local:
            trim(remote_log, 30)

        assert offsets_read(remote_log, 13) == list(range(13, 35))


def test_a_segment_is_read_up_to_where_a_new_leader_truncated_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    written = [segment.log_path.read_bytes() for segment in files.local_segments()]
    with files.open() as remote_log:
        trim(remote_log, 20)
        write_leader_epochs(
            files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(1, 15)]
        )
        reader = reader_of(remote_log)

        assert b"".join(reader.fetch_remote(10)) == reader.fetch(10).content == written[1][:BATCH_BYTES]
        assert [one.offset for one in islice(reader.records(7), 8)] == list(range(7, 15))
        for offset in (15, 19):
            with pytest.raises(RemoteObjectNotFoundError, match=f"holds offset {offset}"):
                reader.fetch(offset)
        assert [one.offset for one in reader.records(20)] == list(range(20, 35))


def test_a_read_stops_at_a_batch_that_a_new_leader_cut_in_two(tmp_path: Path) -> None:
    """The checkpoint's first entry has the log's start, which need not be the start of an epoch."""
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 20)
        write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(1, 17)])
        records_read = reader_of(remote_log).records(10)

        assert [next(records_read).offset for _ in range(7)] == list(range(10, 17))
        with pytest.raises(RemoteObjectNotFoundError, match="holds offset 17"):
            next(records_read)


def test_remote_records_are_read_without_a_local_log(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with only_remote(files) as remote_log:
        reader = reader_of(remote_log)

        assert (reader.log_start_offset, reader.log_end_offset) == (0, 30)
        assert offsets_read(remote_log, 3) == list(range(3, 30))
        assert reader.fetch(30) == FetchedBatches(b"", Tier.REMOTE, "orders-0", 0)


def test_no_remote_record_of_a_deleted_topic_is_read(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3})
    assert run_on(files, "topics", "disable", "orders").exit_code == 0
    with files.open() as remote_log:
        trim(remote_log, 20)
        remote_log.deletions.mark_topic_deleted(remote_log.deletions.plan_topic_deletion("orders"), "delete")

        reader = reader_of(remote_log)
        assert reader.log_start_offset == 20
        with pytest.raises(OffsetOutOfRangeError, match="20 to 34"):
            reader.fetch(0)


def test_a_log_that_was_never_copied_is_read_locally(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))


# ------------------------------------------------------------------------------------------------------------- range


def test_at_the_end_there_is_nothing_and_outside_it_is_an_error_that_names_the_range(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 7, lease)
        reader = reader_of(remote_log)

        assert reader.fetch(35).content == b""
        assert offsets_read(remote_log, 35) == []
        assert offsets_read(remote_log, 7) == list(range(7, 35))
        for outside in (0, 6, 36, 1000):
            for read in (reader.fetch, lambda at: list(reader.records(at)), lambda at: list(reader.fetch_remote(at))):
                with pytest.raises(OffsetOutOfRangeError, match=rf"offset {outside}.*offsets 7 to 34\b"):
                    read(outside)


def test_the_log_starts_where_the_first_tier_does_but_not_below_the_global_log_start(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        trim(remote_log, 20)
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 0

        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 25, held_by(remote_log, "test"))
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 25
        assert offsets_read(remote_log, 25) == list(range(25, 35))


def test_nothing_is_readable_if_everything_remote_has_expired(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with only_remote(files) as remote_log:
        lease = held_by(remote_log, "expire")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 30, lease)
        for segment in segments_of(remote_log):
            step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(step, lease)

        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 30
        assert offsets_read(remote_log, 30) == []
        with pytest.raises(OffsetOutOfRangeError):
            offsets_read(remote_log, 29)


@pytest.mark.parametrize(("stable", "end"), [(32, 32), (30, 30), (35, 35)])
def test_nothing_beyond_what_is_stable_is_read(tmp_path: Path, stable: int, end: int) -> None:
    files = a_copied_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): stable})
    with files.open() as remote_log:
        reader = reader_of(remote_log)

        assert reader.log_end_offset == end
        assert offsets_read(remote_log, 25) == list(range(25, end))
        assert reader.fetch(end).content == b""


def test_a_fetch_ends_before_the_first_batch_of_an_open_transaction(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    active = files.local_segments()[-1].log_path
    opened = encode_batch([record(5)], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    rewrite_segment(active, [*batches_in(active), opened])
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 6})
    with files.open() as remote_log:
        fetched = reader_of(remote_log).fetch(0)

    assert len(fetched.content) == BATCH_BYTES


def test_remote_records_are_read_though_a_restored_local_log_lags(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 12})
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(30))


# --------------------------------------------------------------------------------------------- what a reader must see


def test_each_offset_is_read_once_from_overlapping_segments(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        copy(remote_log)
        for segment in files.local_segments():
            segment.log_path.unlink()
        # The same partition from a directory whose segments have other boundaries.
        _write_segments(files, [(0, 5), (5, 25), (25, 35)], high_watermark=35)
        lease = held_by(remote_log, "test")
        first, *_ = segments_of(remote_log)
        step = a_step(first, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(step, lease)
        remote_log.context.leases.release(lease)
        copied = copy(remote_log).committed
        assert [(one.start_offset, one.end_offset) for one in copied] == [(0, 4), (5, 24)]
    with only_remote(files) as remote_log:
        assert offsets_read(remote_log, 0) == list(range(30))
        assert offsets_read(remote_log, 22) == list(range(22, 30))


def test_the_copy_of_a_deposed_leader_is_not_read(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        copy(remote_log, max_segments=2)
        # Another leader took over at 15 and wrote something else; the cluster follows it.
        segment = files.local_segments()[1]
        first, _ = batches_in(segment.log_path)
        heirs = [replace(record(offset), value=b"of the heir") for offset in range(15, 20)]
        rewrite_segment(segment.log_path, [first, encode_batch(heirs, partition_leader_epoch=1)])
        for later in files.local_segments()[2:]:
            batches = [one[:12] + struct.pack(">i", 1) + one[16:] for one in batches_in(later.log_path)]
            rewrite_segment(later.log_path, batches)
        lineage = [EpochEntry(0, 0), EpochEntry(1, 15)]
        write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", lineage)
        for path in (segment.offset_index_path, segment.time_index_path):
            path.unlink()

        assert [one.start_offset for one in copy(remote_log).committed] == [10, 20]
        trim(remote_log, 30)
        found = [list(PlainReader(remote_log).records(ORDERS_0, 10))]
        # A broker that starts now forgets the leaders below its log start.
        write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(1, 30)])
        found.append(list(PlainReader(remote_log).records(ORDERS_0, 10)))
        assert remote_log.checks.audit().anomalies == ()
    with only_remote(files) as remote_log:
        found.append(list(PlainReader(remote_log).records(ORDERS_0, 10)))

    for each in found:
        assert [one.offset for one in each] == [*range(10, 35)][: len(each)]
        assert {one.value for one in each if 15 <= one.offset < 20} == {b"of the heir"}
    assert [len(each) for each in found] == [25, 25, 20]


def test_markers_of_transactions_are_left_out(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    active = files.local_segments()[-1].log_path
    marker = encode_batch(
        [Record(6, record(6).timestamp, struct.pack(">hh", 0, 1), b"\0" * 6)],
        producer_id=7, producer_epoch=0, is_transactional=True, is_control=True,
    )  # fmt: skip
    written = encode_batch([record(5)], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    rewrite_segment(active, [*batches_in(active), written, marker, encode_batch([record(7)])])
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 8})
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == [0, 1, 2, 3, 4, 5, 7]
        assert offsets_read(remote_log, 6) == [7]


def test_segments_that_are_not_finished_are_not_seen(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(4)
    with files.open() as remote_log:
        begin(remote_log)
    with only_remote(files) as remote_log:
        assert reader_of(remote_log).log_end_offset == 30


# -------------------------------------------------------------------------------------------------- streaming a segment


@pytest.mark.parametrize("offset", [10, 14, 15, 19])
def test_a_remote_segment_streams_from_the_batch_that_holds_an_offset_to_its_end(tmp_path: Path, offset: int) -> None:
    files = a_copied_remote_log(tmp_path)
    written = files.local_segments()[1].log_path.read_bytes()
    with files.open() as remote_log:
        streamed = b"".join(remote_log.fetch("orders", 0, offset))

    assert streamed == written[(offset - 10) // BATCH_RECORDS * BATCH_BYTES :]


def test_local_records_cannot_be_streamed_from_the_remote_tier(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        with pytest.raises(RemoteObjectNotFoundError, match="offset 30"):
            list(remote_log.fetch("orders", 0, 30))
        with pytest.raises(ConfigurationError, match="clicks-0 is neither in"):
            remote_log.fetch("clicks", 0, 0)


def test_a_batch_larger_than_a_read_comes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory_segment, "LOCAL_READ_BYTES", 10)
    with a_remote_log(tmp_path).open() as remote_log:
        assert len(reader_of(remote_log).fetch(0).content) == BATCH_BYTES
        assert offsets_read(remote_log, 0) == list(range(35))


def _write_segments(files: RemoteLogFiles, ranges: Sequence[tuple[int, int]], high_watermark: int) -> None:
    """Write the log's records into segments with these boundaries, without any indexes."""
    for path in files.partition_directory().glob("0*"):
        path.unlink()
    for start, end in ranges:
        batches = [encode_batch(records(base, base + 5)) for base in range(start, end, 5)]
        rewrite_segment(files.partition_directory() / f"{start:020}.log", batches)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): high_watermark})
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 0})


def test_batches_are_cut_off_where_an_offset_is_reached() -> None:
    batches = [encode_batch(records(base, base + 5)) for base in (0, 5, 10)]
    content = b"".join(batches)

    assert below(content, 15, "orders-0", 0) == below(content, 11, "orders-0", 0) == content
    assert below(content, 10, "orders-0", 0) == below(content, 6, "orders-0", 0) == content[: 2 * BATCH_BYTES]
    assert below(content, 0, "orders-0", 0) == b""
    assert below(b"", 5, "orders-0", 0) == b""
