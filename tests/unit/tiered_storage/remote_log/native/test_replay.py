"""Records of the metadata topic: Kafka's rules, and bad ones that change nothing and are reported with their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import mentions, run_on
from support.native_tier import a_native_tier, finish_of
from support.remote_logs import NOW, ORDERS_0, topic_id
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.metadata.topic.records import MetadataRecord, encode_record
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
)
from tiered_storage.remote_log.native.metadata_topic import TOPIC, MetadataRecordValue
from tiered_storage.remote_log.native.replay import MOST_SHOWN, Replay

STARTED, FINISHED = SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED
MARKED, GONE = SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED


def a_segment(number: int = 0) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(ORDERS_0, topic_id(f"segment {number}"))
    epochs = (EpochEntry(0, 10 * number),)
    return RemoteLogSegmentMetadata(segment_id, 10 * number, 10 * number + 9, NOW, NOW, 100, epochs)


def moved(state: SegmentState, number: int = 0) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(a_segment(number).segment_id, state, NOW + 1)


def deletion(state: PartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(ORDERS_0, state, NOW)


def replayed(records: Sequence[MetadataRecord | bytes | None]) -> Replay:
    replay = Replay(TOPIC, ORDERS_0.cluster_id)
    for offset, each in enumerate(records):
        value = each if isinstance(each, bytes | None) else encode_record(each)
        replay.apply(MetadataRecordValue(3, offset, value))
    return replay


def states(replay: Replay) -> list[SegmentState]:
    return [segment.state for segment in replay.content(ORDERS_0).by_offset()]


@pytest.mark.parametrize(
    ("records", "expected", "refused"),
    [
        ([a_segment()], [STARTED], 0),
        ([a_segment(), moved(FINISHED)], [FINISHED], 0),
        ([a_segment(), moved(FINISHED), moved(FINISHED)], [FINISHED], 0),
        ([a_segment(), moved(FINISHED), a_segment()], [FINISHED], 0),
        ([a_segment(), moved(FINISHED), moved(MARKED)], [MARKED], 0),
        ([a_segment(), moved(MARKED), moved(GONE)], [], 0),
        ([a_segment(), moved(FINISHED), moved(MARKED), moved(GONE), moved(GONE)], [], 0),
        ([a_segment(), moved(GONE)], [STARTED], 1),
        ([a_segment(), moved(FINISHED), moved(GONE)], [FINISHED], 1),
        ([a_segment(), moved(FINISHED), moved(MARKED), moved(FINISHED)], [MARKED], 1),
        ([moved(FINISHED), a_segment()], [STARTED], 1),
        ([replace(a_segment(), state=FINISHED)], [], 1),
        ([a_segment(), replace(a_segment(), size=7)], [STARTED], 1),
        ([replace(a_segment(), size=0)], [], 1),
        ([a_segment(), *map(deletion, PartitionDeleteState)], [], 0),
        ([a_segment(), deletion(PartitionDeleteState.STARTED)], [STARTED], 1),
        ([a_segment(), b"", b"\1\7\0", b"\1\0\0", None, moved(FINISHED)], [FINISHED], 3),
    ],
)
def test_rules_are_those_of_kafkas_reader(
    records: list[MetadataRecord | bytes | None], expected: list[SegmentState], refused: int
) -> None:
    replay = replayed(records)

    assert (states(replay), replay.refused) == (expected, refused)
    assert replay.positions == {3: len(records)}


def test_a_refused_record_is_shown_with_its_place() -> None:
    replay = replayed([a_segment(), moved(FINISHED), b"\xff"])

    [shown] = replay.shown
    assert mentions(shown, f"{TOPIC}-3", "offset 2")


def test_only_the_first_refused_records_are_kept() -> None:
    replay = replayed([b"\xff"] * (MOST_SHOWN + 5))

    assert (replay.refused, len(replay.shown)) == (MOST_SHOWN + 5, MOST_SHOWN)


@given(st.lists(st.binary(max_size=80) | st.sampled_from([encode_record(a_segment()), encode_record(moved(FINISHED))])))
def test_no_value_crashes_the_reader(values: list[bytes]) -> None:
    replay = replayed(values)

    assert replay.records == len(values)
    assert set(states(replay)) <= {STARTED, FINISHED}


@given(st.lists(st.sampled_from(list(SegmentState)), max_size=12))
def test_a_visible_segment_was_started_and_finished_in_this_order(steps: list[SegmentState]) -> None:
    replay = replayed([a_segment(), *map(moved, steps)])

    expected: SegmentState | None = STARTED
    for step in steps:
        if expected is not None and expected.may_become(step):
            expected = None if step is GONE else step
    assert states(replay) == ([] if expected is None else [expected])


def test_bad_records_are_reported_by_the_commands(tmp_path: Path) -> None:
    tier = a_native_tier(tmp_path)
    tier.add_records([b"\1\0\0garbage", None])
    tier.add(moved(FINISHED, 99))

    listed, audited = run_on(tier.files, "segments", "--json"), run_on(tier.files, "audit", "--json")

    assert (listed.exit_code, len(listed.rows), audited.exit_code) == (0, 3, 0)
    assert mentions(listed.err, "2 records", f"{TOPIC}-0, offset 6", "offset 8")
    assert any(mentions(notice, "offset 6") for notice in audited.document["notices"])


def test_records_that_were_deleted_from_the_topic_are_reported(tmp_path: Path) -> None:
    tier = a_native_tier(tmp_path)
    first, second, *_ = list_segments(tier.files.log_directory / f"{TOPIC}-0")
    for path in first.directory.glob(f"{first.base_offset:020d}.*"):
        path.unlink()

    listed = run_on(tier.files, "segments", "--json")

    assert listed.exit_code == 0
    assert 0 < len(listed.rows) < len(tier.segments)
    assert mentions(listed.err, "partition 0", f"offset {second.base_offset}", "deleted")


def test_an_object_missing_behind_valid_metadata_is_an_error_and_no_skip(tmp_path: Path) -> None:
    tier = a_native_tier(tmp_path)
    tier.object_of(tier.segments[1]).unlink()

    read = run_on(tier.files, "read", "orders", 0, "--max-records", 100)
    audited = run_on(tier.files, "audit", "--json")

    assert read.exit_code == 1
    assert mentions(read.err, tier.segments[1].segment_id.id)
    assert audited.exit_code == 1
    assert [row["kind"] for row in audited.rows] == ["missing object"]


def test_what_is_not_finished_is_not_read(tmp_path: Path) -> None:
    tier = a_native_tier(tmp_path)
    unfinished = replace(a_segment(3), start_offset=30, end_offset=39)
    tier.add(unfinished, finish_of(tier.segments[0]))
    tier.add(moved(MARKED, 3))
    tier.files.properties["log.dirs"] = []

    found = run_on(tier.files, "offsets", "orders", 0, "--json")

    assert {row["of"]: row["offset"] for row in found.rows}["latest"] == 30
