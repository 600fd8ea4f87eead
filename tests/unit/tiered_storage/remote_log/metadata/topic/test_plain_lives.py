"""Many records at once leave what the same records leave one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Row

from support.metadata_stores import DELETED, DELETING, FINISHED, ORDERS_0, ORDERS_1, STARTED, a_segment, a_step, dump
from tiered_storage.remote_log.metadata.sql.database.schema import metadata as sql_tables
from tiered_storage.remote_log.metadata.sql.fact_columns import FactColumns
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId, Place, SegmentFacts
from tiered_storage.remote_log.metadata.topic import applying
from tiered_storage.remote_log.metadata.topic.applying import DecodedRecord, apply_block, apply_records, decoded
from tiered_storage.remote_log.metadata.topic.cache import SegmentCache
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import LogValues
from tiered_storage.remote_log.metadata.topic.cluster.record_blocks import RecordBlock
from tiered_storage.remote_log.metadata.topic.metadata_columns import decode_values
from tiered_storage.remote_log.metadata.topic.plain_lives import PlainLives
from tiered_storage.remote_log.metadata.topic.records import encode_record
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

TOPIC = MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 1)
UNDELETED_AT = 7_777
RENAMED = replace(ORDERS_0, topic="renamed")
PAYMENTS = TopicIdPartition("cluster-1", "topic-id-of-paymentsAA", 0, "payments")
PARTITIONS = (ORDERS_0, RENAMED, ORDERS_1, PAYMENTS)


def segment_of(partition: TopicIdPartition, start: int, **changed: Any) -> RemoteLogSegmentMetadata:
    return a_segment(Lease(partition, "run-1", 3, 1_000), start, start + 9, **changed)


SEGMENTS = [segment_of(partition, start) for partition in PARTITIONS for start in (0, 10, 20)]
SEGMENTS += [
    segment_of(ORDERS_0, 5, custom_metadata=b"", epochs=((3, 5), (1, 0))),
    segment_of(ORDERS_1, 30, size=0),
    replace(segment_of(ORDERS_1, 0), end_offset=2**63 - 1),
    # The same id in another partition is another segment.
    segment_of(PAYMENTS, 40, segment_id=replace(SEGMENTS[8].segment_id, topic_id_partition=PAYMENTS)),
]


class FactRow(NamedTuple):
    """A row of topic_segments."""

    segment_id: str
    topic_id: str
    partition: int
    cluster_id: str
    fencing_number: int
    max_timestamp: int | None
    undeleted_at: int | None

    @property
    def place(self) -> Place:
        return self.segment_id, self.topic_id, self.partition


FACTS = [
    FactRow(
        each.segment_id.id,
        each.topic_id_partition.topic_id,
        each.topic_id_partition.partition,
        "cluster-1",
        fencing_number=number,
        max_timestamp=None if number % 2 else 55 + number,
        undeleted_at=UNDELETED_AT if number % 3 else None,
    )
    for number, each in enumerate(SEGMENTS)
]


def life(segment: RemoteLogSegmentMetadata) -> list[bytes]:
    """Return the records that a segment has if nothing goes wrong."""
    steps = [
        a_step(segment, FINISHED, 2_000, custom_metadata=b"sent"),
        a_step(segment, DELETING, 3_000),
        a_step(segment, DELETED, 4_000, custom_metadata=b""),
    ]
    return [encode_record(replace(segment, fencing_number=0)), *map(encode_record, steps)]


LIVES = [life(each) for each in SEGMENTS]
OTHERS: list[bytes | None] = [
    None,
    b"nonsense",
    encode_record(RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, 5)),
    encode_record(RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.STARTED, 6)),
    *(encode_record(a_step(each, FINISHED, UNDELETED_AT)) for each in SEGMENTS[:4]),
    *(encode_record(a_step(each, STARTED)) for each in SEGMENTS[:2]),
    *(encode_record(replace(each, state=FINISHED)) for each in SEGMENTS[:2]),
    *(encode_record(replace(each, end_offset=99)) for each in SEGMENTS[2:4]),
]


@st.composite
def logs(draw: st.DrawFn) -> list[bytes | None]:
    """Records of some segments up to some states, mixed; often with some that no order allows, or with gaps."""
    chosen = draw(st.lists(st.sampled_from(range(len(LIVES))), unique=True, max_size=8))
    parts: list[list[bytes | None]] = [list(LIVES[each][: draw(st.integers(1, 4))]) for each in chosen]
    if draw(st.booleans()):
        parts += [[draw(st.sampled_from(OTHERS))] for _ in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()):
        parts = [[each for each in part if draw(st.integers(0, 9))] for part in parts]
    order = draw(st.permutations([number for number, part in enumerate(parts) for _ in part]))
    return [parts[number].pop(0) for number in order]


@st.composite
def some_facts(draw: st.DrawFn) -> list[FactRow]:
    """Facts on all segments; or some are missing, are of another cluster, or are there twice."""
    facts: list[FactRow | None] = [*FACTS]
    for number in draw(st.lists(st.sampled_from(range(len(FACTS))), unique=True, max_size=3)):
        match draw(st.integers(0, 2)):
            case 0:
                facts[number] = None
            case 1:
                facts[number] = FACTS[number]._replace(cluster_id="cluster-2")
            case 2:
                facts.append(FACTS[number]._replace(cluster_id="cluster-3"))
    return [each for each in facts if each is not None]


class Applied:
    """A cache to which records are applied, beside `facts`."""

    def __init__(self, folder: Path, facts: Sequence[FactRow]) -> None:
        self.cache = SegmentCache(folder, TOPIC, 1_000)
        self._columns = FactColumns.of([cast("list[Row[Any]]", facts)], TOPIC.cluster_id)
        self._facts = {
            each.place: SegmentFacts(each.cluster_id, each.fencing_number, each.max_timestamp, each.undeleted_at)
            for each in reversed(facts)
        }
        self.end = 0

    def decoded(self, found: LogValues) -> list[DecodedRecord]:
        return decoded(found, TOPIC.cluster_id, lambda _: self._facts)

    def one_by_one(self, values: Sequence[bytes | None]) -> None:
        """Apply each value by itself, in one transaction: a commit takes longer than all else."""
        with self.cache.database.writing() as connection:
            for value in values:
                records = self.decoded(LogValues(0, ((self.end, value),), self.end + 1))
                apply_records(connection, records, 0, self.end, self.end + 1, "the topic")
                self.end += 1

    def block(self, values: Sequence[bytes | None], *, is_done: bool = True) -> PlainLives:
        """Apply `values` at once, twice: the second time changes nothing."""
        end = self.end + len(values)
        block = RecordBlock(0, self.end, end, np.arange(self.end, end), pa.array(values, pa.binary()))
        first, again = (PlainLives(decode_values(block.values), lambda _: self._columns) for _ in range(2))
        for lives in (first, again):
            with self.cache.database.writing() as connection:
                found = apply_block(connection, block, lives, self.decoded, "the topic")
            assert found is is_done
        self.end = end
        return first

    def content(self) -> object:
        with self.cache.database.reading() as connection:
            return dump(connection, sql_tables), self.cache.skipped(), self.cache.consumed()


@given(st.just([]) | logs(), logs(), some_facts())
def test_a_block_leaves_what_its_records_leave_one_by_one(
    earlier: list[bytes | None], values: list[bytes | None], facts: list[FactRow]
) -> None:
    with TemporaryDirectory() as folder:
        one_by_one, at_once = (Applied(Path(folder, name), facts) for name in ("one", "other"))
        one_by_one.one_by_one([*earlier, *values, None])
        at_once.one_by_one(earlier)
        at_once.block([*values, None])
        found = [each.content() for each in (one_by_one, at_once)]
        for each in (one_by_one, at_once):
            each.cache.close()

    assert found[1] == found[0]


def others(values: Sequence[bytes | None], facts: Sequence[FactRow] = FACTS) -> list[int]:
    """Return which of `values` are not applied by columns."""
    with TemporaryDirectory() as folder:
        applied = Applied(Path(folder), facts)
        found: list[int] = applied.block(values).other_rows().tolist()
        applied.cache.close()
    return found


def test_plain_lives_are_applied_by_columns() -> None:
    values = [record for number in (0, 1, 2, 9) for record in LIVES[number][: 4 - number % 3]]

    assert others(values) == []
    assert others([LIVES[0][0], *LIVES[9], LIVES[0][2], LIVES[0][3]]) == [], "a copy that never finished is deleted"
    assert others([None, LIVES[0][0], b"nonsense", *OTHERS[2:4]]) == [0, 2, 3, 4]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param([*LIVES[0][:2], LIVES[0][1]], id="a state is repeated"),
        pytest.param([LIVES[0][0], LIVES[0][0]], id="a beginning is repeated"),
        pytest.param([LIVES[0][1], LIVES[0][0]], id="the end comes first"),
        pytest.param([*LIVES[0][:2], LIVES[0][3]], id="a state is left out"),
        pytest.param([encode_record(replace(SEGMENTS[0], state=FINISHED))], id="it begins with another state"),
        pytest.param([LIVES[13][0]], id="its size is unknown"),
        pytest.param([LIVES[14][0]], id="its end is above all offsets"),
    ],
)
def test_a_partition_with_one_odd_life_is_applied_record_by_record(odd: list[bytes]) -> None:
    values = [*odd, *LIVES[1], *LIVES[4], *LIVES[9]]
    left = set(others(values))

    assert set(range(len(odd))) <= left
    assert left.isdisjoint(range(len(values) - 4, len(values))), "other partitions are plain"


def test_partitions_with_the_same_id_are_not_plain() -> None:
    assert others([*LIVES[8], *LIVES[15], *LIVES[0]]) == list(range(8))


def test_segments_of_several_clusters_in_one_partition_are_not_plain() -> None:
    facts = [FACTS[0], FACTS[1]._replace(cluster_id="cluster-2"), FACTS[9]]

    assert others([*LIVES[0], *LIVES[1], *LIVES[9]], facts) == list(range(8))
    assert others([*LIVES[0], *LIVES[6], *LIVES[9]], facts) == [4, 5, 6, 7], "SQL has no facts"


def test_a_partition_that_has_segments_already_is_not_plain() -> None:
    with TemporaryDirectory() as folder:
        applied = Applied(Path(folder), FACTS)
        applied.one_by_one(LIVES[0][:1])
        left = applied.block([*LIVES[1], *LIVES[9]]).other_rows().tolist()
        applied.cache.close()

    assert left == [0, 1, 2, 3]


def test_too_much_that_is_not_plain_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "OTHERS_AT_ONCE", 1)
    applied = Applied(tmp_path, FACTS)
    before = applied.content()

    applied.block([*LIVES[9], b"nonsense", None], is_done=False)

    assert applied.content() == before
    applied.cache.close()
