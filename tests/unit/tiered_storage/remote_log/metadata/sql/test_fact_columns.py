from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, ORDERS_1, sqlite_store
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid, random_uuid
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import topic_segments
from tiered_storage.remote_log.metadata.sql.fact_columns import NONE, FactColumns, ManyFacts
from tiered_storage.remote_log.model import TopicIdPartition

IDS = [random_uuid() for _ in range(4)]
FEW, MANY = 0, 1_000


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with sqlite_store(tmp_path, clock) as store:
        yield store.database


def write(database: Database, *facts: tuple[str, TopicIdPartition, str, int, int | None]) -> None:
    """Write id, partition, cluster, fencing number and largest timestamp of segments."""
    names = ("segment_id", "topic_id", "partition", "cluster_id", "fencing_number", "max_timestamp")
    with database.writing() as connection:
        for segment_id, place, *others in facts:
            values = (segment_id, place.topic_id, place.partition, *others)
            connection.execute(topic_segments.insert(), dict(zip(names, values, strict=True)))


def found(facts: FactColumns, segment_id: str, place: TopicIdPartition = ORDERS_0) -> tuple[object, ...]:
    """Return cluster, fencing number and largest timestamp that `facts` has of a segment, and whether it is certain."""
    halves = np.frombuffer(decode_uuid(segment_id), ">i8").astype(np.int64)[:, None]
    topic = np.frombuffer(decode_uuid(place.topic_id), ">i8").astype(np.int64)
    [row], [is_ambiguous] = facts.rows_of(halves, np.append(topic, place.partition)[:, None])
    largest = int(facts.max_timestamp[row]) if facts.has_max_timestamp[row] else None
    return facts.clusters[facts.cluster[row]], int(facts.fencing_number[row]), largest, not is_ambiguous


@pytest.mark.parametrize("records", [FEW, MANY])
def test_each_segment_has_its_facts_and_others_have_none(database: Database, records: int) -> None:
    write(
        database,
        (IDS[0], ORDERS_0, "cluster-1", 3, None),
        (IDS[1], ORDERS_1, "cluster-2", 4, 0),
        ("not a UUID", ORDERS_0, "cluster-1", 9, None),
        (IDS[2], TopicIdPartition("cluster-1", "not a UUID either", 0, "x"), "cluster-1", 9, None),
    )

    facts = ManyFacts(database, "cluster-of-the-topic", records).of(IDS)

    assert found(facts, IDS[0]) == ("cluster-1", 3, None, True)
    assert found(facts, IDS[1], ORDERS_1) == ("cluster-2", 4, 0, True)
    nothing = ("cluster-of-the-topic", 0, None, True)
    assert found(facts, IDS[1], ORDERS_0) == nothing, "the same id in another partition"
    assert found(facts, IDS[2]) == found(facts, IDS[3]) == nothing


def test_several_facts_on_one_id_are_not_certain(database: Database) -> None:
    write(database, (IDS[0], ORDERS_0, "cluster-1", 3, None), (IDS[0], ORDERS_0, "cluster-2", 4, None))

    assert found(ManyFacts(database, "cluster-1", MANY).of(IDS), IDS[0])[-1] is False


def test_ids_that_begin_alike_are_told_apart(database: Database) -> None:
    alike = [f"segment-{number:06}AAAAAAAA" for number in range(50)]
    write(database, *((each, ORDERS_0, "cluster-1", number, None) for number, each in enumerate(alike, 1)))

    facts = ManyFacts(database, "cluster-1", MANY).of(alike)

    assert [found(facts, each)[1] for each in alike] == list(range(1, 51))


def test_all_facts_are_read_once_and_few_by_their_ids(database: Database) -> None:
    write(database, (IDS[0], ORDERS_0, "cluster-1", 3, None))
    many, few = (ManyFacts(database, "cluster-1", records) for records in (MANY, FEW))

    assert many.of(IDS[:1]) is many.of(IDS[1:])
    assert [found(few.of([each]), IDS[0])[1] for each in (IDS[0], IDS[1])] == [3, 0]


def test_there_may_be_no_facts(database: Database) -> None:
    with database.reading() as connection:
        facts = FactColumns.of([connection.execute(select(topic_segments)).all()], "cluster-1")

    assert found(facts, IDS[0]) == ("cluster-1", 0, None, True)
    assert facts.rows_of(np.empty((2, 0), np.int64), np.empty((3, 0), np.int64))[0].tolist() == []
    assert facts.cluster[[NONE]].tolist() == [0]
