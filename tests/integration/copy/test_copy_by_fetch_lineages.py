"""Copies by Fetch know the leader epochs, the producers and the aborted transactions before each segment."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.stored_segments import ensure_as_stored, read
from support.kafka_clients import send
from support.live_sites import LONG, SEGMENT_BYTES, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask, RollOrder
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.model import Lease
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.source.partition_log import PartitionLog, SegmentLocation, name_of
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


def test_transactions_are_copied_once_decided_with_their_aborts(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    producers = [
        client.producer(transactional_id=f"{topic}-{number}", enable_idempotence="true", batch_num_messages=10)
        for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions()
    for turn in range(12):
        producer = producers[turn % 3]
        producer.begin_transaction()
        send(producer, topic, 0, varied_records(60, seed=turn))
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)()
    held = client.producer(transactional_id=f"{topic}-held", enable_idempotence="true")
    held.init_transactions()
    held.begin_transaction()
    [first_held, *_] = send(held, topic, 0, varied_records(1, seed=99))
    client.produce(topic, varied_records(300, seed=100), batch_num_messages=20)

    while site.copied():
        pass
    with site.open() as remote_log:
        assert finished(remote_log)[-1].end_offset < first_held.offset

    held.abort_transaction()
    client.wait_until_decided(topic)
    client.produce(topic, varied_records(300, seed=101), batch_num_messages=20)
    while site.copied():
        pass

    assert ensure_as_stored(site) >= len(site.local()) - 2
    with site.open() as remote_log:
        end = finished(remote_log)[-1].end_offset
    assert end > first_held.offset
    expected = [one for one in client.consume_all(topic, isolation="read_committed") if one.offset <= end]
    assert read(site, Isolation.READ_COMMITTED) == expected
    assert read(site, Isolation.READ_UNCOMMITTED) == [one for one in client.consume_all(topic) if one.offset <= end]
    site.audited()


def test_aborts_are_known_though_nobody_knows_the_producers_before(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    producer = client.producer(transactional_id=topic, enable_idempotence="true", batch_num_messages=10)
    producer.init_transactions()
    producer.begin_transaction()
    first = send(producer, topic, 0, varied_records(200, seed=1))
    client.produce(topic, varied_records(200, seed=2), batch_num_messages=20)
    send(producer, topic, 0, varied_records(200, seed=3))
    producer.abort_transaction()
    client.wait_until_decided(topic)
    client.produce(topic, varied_records(200, seed=4), batch_num_messages=20)
    # The transaction began before the log now starts, in the middle of a batch.
    start = first[105].offset
    client.delete_records(topic, 0, before=start)

    while site.copied():
        pass

    with site.open() as remote_log:
        segments = finished(remote_log)
        storage = remote_log.context.storage
        assert isinstance(storage, ListableStorage)
        bundles = [storage.fetch_bundle(segment) for segment in segments]
        assert remote_log.context.segments.log_start_offset(segments[0].topic_id_partition) == start
    aborted = [
        entry
        for segment, bundle in zip(segments, bundles, strict=True)
        if IndexKind.TRANSACTION in bundle
        for entry in TransactionIndex.parse(bundle[IndexKind.TRANSACTION], "ours", segment.start_offset).transactions
    ]
    assert [entry.first_offset for entry in aborted] == [0]
    assert all(IndexKind.PRODUCER_SNAPSHOT not in bundle for bundle in bundles)
    end = segments[-1].end_offset
    expected = client.consume_all(topic, isolation="read_committed", start=start)
    assert read(site, Isolation.READ_COMMITTED, start) == [one for one in expected if one.offset <= end]


def test_a_later_leader_epoch_is_part_of_the_lineage(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    site.copied()
    with site.kafka.stopped():
        pass
    client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    while site.copied():
        pass

    with site.open() as remote_log:
        segments = finished(remote_log)
        state = remote_log.context.segments.partition_state(segments[0].topic_id_partition)
    assert len(state.lineage) == 2
    assert state.lineage[1].start_offset == len(sent)
    assert any(len(segment.leader_epochs) == 2 for segment in segments)
    assert ensure_as_stored(site, indexes=False) == len(segments)
    site.audited()


def test_a_leader_epoch_in_which_nothing_was_written_yet_is_part_of_the_lineage(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.kafka.stopped():
        pass

    site.copied()

    with site.open() as remote_log:
        segments = finished(remote_log)
        lineage = remote_log.context.segments.partition_state(segments[0].topic_id_partition).lineage
    assert [entry.start_offset for entry in lineage] == [0, len(sent)]
    assert [segment.leader_epochs for segment in segments] == [
        (EpochEntry(lineage[0].epoch, segment.start_offset),) for segment in segments
    ]
    site.audited()


def test_a_log_start_that_moves_past_an_epoch_meanwhile_invents_no_lineage(
    site: LiveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.kafka.stopped():
        pass
    client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    while site.copied():
        pass
    ask = ClusterClient.offsets_for_leader_epochs

    def late(self: ClusterClient, *args: Any, **named: Any) -> Any:
        client.delete_records(topic, 0, before=500)
        return ask(self, *args, **named)

    monkeypatch.setattr(ClusterClient, "offsets_for_leader_epochs", late)
    with site.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        log = remote_log.context.source.partition(partition)
        known = remote_log.context.segments.partition_state(partition).lineage

    assert log is not None
    assert log.leader_epochs == (EpochEntry(known[-1].epoch, 500),)
    assert trusted_lineage(known, log) == known


def test_no_epoch_is_invented_before_the_leaders_first_one(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.kafka.stopped():
        checkpoint = site.kafka.log_dir / f"{topic}-0" / "leader-epoch-checkpoint"
        write_leader_epochs(checkpoint, [EpochEntry(1, sent[200].offset)])
    with site.open() as remote_log:
        [log] = [each for each in remote_log.context.source.partitions() if name_of(each) == (topic, 0)]

    assert isinstance(log, PartitionLog)
    assert log.log_start_offset == 0
    assert log.leader_epochs[0] == EpochEntry(1, sent[200].offset)


def test_whichever_task_begins_knows_the_producers_of_the_last_run(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(1000, seed=1), batch_num_messages=20, enable_idempotence="true")
    site.copied("--max-segments", 1)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "turned")
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        with closing(
            SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            outcomes = [
                roller.copy(task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock))
                for task in reversed(begun.tasks[:2])
            ]
        assert len(remote_log.commit_copy(outcomes).committed) == 2
    assert ensure_as_stored(site) == 3


def test_producers_are_known_where_a_later_leader_truncated_a_remote_segment(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    for number in range(3):
        producer = client.producer(transactional_id=f"{topic}-{number}", batch_num_messages=10)
        producer.init_transactions()
        producer.begin_transaction()
        send(producer, topic, 0, varied_records(200, seed=number))
        (producer.abort_transaction if number == 1 else producer.commit_transaction)()
    client.wait_until_decided(topic)
    while site.copied():
        pass
    with site.open() as remote_log:
        before, truncated, *_ = finished(remote_log)[1:]
        rows = [
            row
            for _, table in iterate_segment(site.local()[2].log_path, truncated.start_offset)
            for row in table.base_offset.tolist()
        ]
        at = rows[len(rows) // 2]
        log = remote_log.context.source.partition(truncated.topic_id_partition)
        assert log is not None
        assert log.unsegmented is not None
        task = CopyTask(
            replace(truncated, start_offset=at, end_offset=log.last_stable_offset - 1, size=0),
            Lease(truncated.topic_id_partition, "test", 1, 0),
            SegmentLocation("kafka://"),
            log.leader_epochs,
            roll=RollOrder(log.unsegmented.rules, at, SEGMENT_BYTES, (before, truncated)),
        )
        found: list[tuple[ProducerSnapshotEntry, ...]] = []

        def kept(known: CopyTask) -> CopyOutcome:
            files = Path(known.location.removeprefix("fetched://")).parent
            found.append(read_producer_snapshot(producer_snapshot_path(files, known.metadata.end_offset + 1)))
            ends.append(known.metadata.end_offset + 1)
            return CopyOutcome(known, None)

        ends: list[int] = []
        with closing(
            SegmentRoller([task], remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            assert roller.copy(task, kept).failure is None

    state = ProducerState(0, batches_kept=1)
    for segment in site.local():
        for window, table in iterate_segment(segment.log_path, segment.base_offset):
            count = int(table.base_offset.searchsorted(ends[0]))
            if count:
                state.feed("the broker's log", window, table.rows(0, count))
    assert set(found[0]) == set(state.snapshot())
    assert len(found[0]) > 1
