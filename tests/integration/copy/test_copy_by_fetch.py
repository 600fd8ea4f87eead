"""A running broker's partitions are copied by Fetch: byte for byte what the broker stores, and nothing twice."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from integration.stored_segments import ensure_as_stored, read
from support.kafka_clients import CODECS
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from tiered_storage.clock import wall_clock
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller
from tiered_storage.remote_log.jobs.throttle import QuotaLimit
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.source.partition_log import NamedPartition


def test_every_codec_is_copied_as_the_broker_stores_it(site: LiveSite) -> None:
    [topic] = site.topics
    site.kafka.client.create_topic(topic, len(CODECS), SMALL_SEGMENTS | LONG)
    for number, codec in enumerate(CODECS):
        records = varied_records(700, seed=number)
        site.kafka.client.produce(topic, records, partition=number, codec=codec, batch_num_messages=40)

    while site.copied():
        pass

    for number in range(len(CODECS)):
        assert ensure_as_stored(site, number) >= len(site.local(number)) - 2
    site.audited()


def test_runs_continue_where_the_last_one_ended(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    first = site.copied("--max-segments", 2)
    client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    rest = []
    while more := site.copied():
        rest += more

    offsets = [*first, *rest]
    assert len(first) == 2
    assert [start for start, _ in offsets] == [0, *(end + 1 for _, end in offsets[:-1])]
    assert ensure_as_stored(site) == len(offsets)
    site.audited()


def test_a_gap_is_an_error_until_somebody_decides(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    copied = site.copied()
    end = copied[-1][1]
    sent += client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    client.delete_records(topic, 0, before=end + 100)

    refused = site.run("copy", "--json")

    assert refused.exit_code == 1
    assert f"offsets {end + 1} to {end + 99}" in refused.out + refused.err
    assert "copy.over.gaps" in refused.out + refused.err
    assert refused.rows == []
    [metrics] = site.run("metrics", "--json").rows
    assert metrics["missing_offsets"] == 99
    over = replace(site, settings={"copy.over.gaps": True})
    lossy = over.run("copy", "--json")
    assert lossy.exit_code == 1, "the run that copies over a gap tells of the loss"
    assert f"offsets {end + 1} to {end + 99}" in lossy.out + lossy.err
    rest = [(row["start_offset"], row["end_offset"]) for row in lossy.rows]
    assert rest
    while more := over.copied():
        rest += more
    start = rest[0][0]
    assert end < start <= end + 100

    # Nobody reads over it unknowingly, and every audit names it until somebody gives it up.
    audit = site.run("audit", "--deep", "--json")
    assert audit.exit_code == 1
    [gap] = audit.rows
    assert gap["kind"] == "gap"
    assert f"offsets {end + 1} to {start - 1} " in gap["message"]
    assert read(site, Isolation.READ_UNCOMMITTED, start) == sent[start : rest[-1][1] + 1]
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        [partition] = remote_log.context.segments.list_partitions()
        assert list(reader.records(partition, 0, end_offset=end + 1)) == sent[: end + 1]
        for missing in (end + 1, start - 1):
            with pytest.raises(RemoteObjectNotFoundError, match=f"offset {missing}"):
                list(reader.records(partition, missing))
        with pytest.raises(RemoteObjectNotFoundError, match=f"offset {end + 1}"):
            list(reader.records(partition, end))
    assert site.run("topics", "allow-deletion", topic).exit_code == 0
    assert site.run("delete-records", topic, 0, "--before", start).exit_code == 0
    site.audited()


def test_offsets_that_were_compacted_away_before_the_first_batch_hold_nothing_up(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1"}
    client.create_topic(topic, 1, {"segment.bytes": str(1 << 20), **compacted})
    for _ in range(2):
        client.produce(topic, [Record(0, wall_clock(), b"key", b"value") for _ in range(100)])
    deadline = time.monotonic() + 120
    while (first := client.consume_all(topic)[0].offset) == 0:
        assert time.monotonic() < deadline, "the broker compacts nothing"
        client.produce(topic, [Record(0, wall_clock(), b"key", b"value")])
        time.sleep(0.5)
    client.alter_topic(topic, {"cleanup.policy": "delete"})

    [(start, end), *_] = site.copied()

    assert start == 0
    assert first <= end
    site.audited()


def test_an_old_tail_of_an_idle_partition_is_copied(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, {"segment.ms": "60000", "segment.bytes": str(1 << 20)})
    client.produce(topic, varied_records(50, seed=1))

    assert site.copied() == [(0, 49)]
    assert site.copied() == []

    now = [Record(0, wall_clock(), b"key", b"fresh")]
    client.produce(topic, now)
    assert site.copied() == []


def test_one_run_catches_up_every_segment_that_rolled_by_time(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, {"segment.ms": "2000"})
    begun = wall_clock() - 3_600_000
    for number in range(5):
        records = [Record(0, begun + 10_000 * number + each, b"key", b"value") for each in range(20)]
        client.produce(topic, records, batch_num_messages=5)
    client.produce(topic, [Record(0, wall_clock() + 60_000, b"key", b"fresh")])
    assert len(site.local()) == 6, "the broker has closed five"

    assert site.copied() == [(20 * number, 20 * number + 19) for number in range(5)]
    assert site.copied() == []
    assert ensure_as_stored(site) == 5


def test_a_segment_ms_without_an_end_holds_no_copy_up(site: LiveSite) -> None:
    assert copied_with_one_from_the_end_of_time(site, "9223372036854775807") == [(0, 1)]


def test_a_record_from_the_end_of_time_holds_no_copy_up(site: LiveSite) -> None:
    # The second record never becomes old, so its segment stays open. Its brokers never delete it either.
    assert copied_with_one_from_the_end_of_time(site, "2000") == [(0, 0)]


def copied_with_one_from_the_end_of_time(site: LiveSite, segment_ms: str) -> list[tuple[int, int]]:
    """Return what two copies make of an old record, and one with nearly the largest timestamp."""
    [topic], client, hour = site.topics, site.kafka.client, 3_600_000
    site = replace(site, settings={"enable.min.retention.margin.ms": hour})
    any_time = {"message.timestamp.after.max.ms": "9223372036854775807"}
    client.create_topic(topic, 1, {"segment.ms": segment_ms, "retention.ms": str(2 * hour)} | any_time)
    for timestamp in (wall_clock() - hour, 2**63 - 2):
        client.produce(topic, [Record(0, timestamp, b"key", b"value")])
    return site.copied() + site.copied()


def test_a_tail_is_copied_before_the_brokers_retention_deletes_it(site: LiveSite) -> None:
    [topic], client, hour = site.topics, site.kafka.client, 3_600_000
    site = replace(site, settings={"enable.min.retention.margin.ms": hour})
    client.create_topic(topic, 1, {"retention.ms": str(2 * hour), "segment.ms": str(24 * hour)})
    client.produce(topic, [Record(0, wall_clock() - hour, b"key", b"value")])

    assert site.copied() == [(0, 0)]


def test_a_topic_of_limited_size_is_copied_before_its_brokers_delete_it(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, {"retention.bytes": str(2 << 20), "segment.bytes": str(64 << 20)} | LONG)
    client.produce(topic, [Record(0, wall_clock(), b"key", bytes(10_000)) for _ in range(150)], batch_num_messages=5)

    result = site.run("copy", "--json")

    # The run copies, and then fails: so little is a risk that a person should know of.
    assert "retention.bytes" in result.err
    [row] = result.rows
    assert row["start_offset"] == 0
    assert 90 < row["end_offset"] < 110


def test_a_burst_of_large_records_does_not_wait_for_its_age(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    small = [Record(0, wall_clock(), b"key", b"value") for _ in range(3000)]
    client.produce(topic, small, batch_num_messages=100)
    while site.copied():
        pass
    client.produce(topic, [Record(0, wall_clock(), b"key", bytes(5000)) for _ in range(20)], batch_num_messages=1)
    client.produce(topic, small[:100], batch_num_messages=100)

    copied = site.copied()

    assert len(copied) > 3
    site.audited()


def test_copies_of_a_topic_that_is_deleted_meanwhile_stay_and_are_named(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "meanwhile")
        [shown, *_] = site.run("segments", "--json").rows
        assert (shown["bytes"], shown["state"]) == (None, "COPY_SEGMENT_STARTED")
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        with closing(
            SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            outcomes = [
                roller.copy(task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock))
                for task in begun.tasks
            ]
        client.delete_topic(topic)
        report = remote_log.commit_copy(outcomes)
        states = {
            segment.state
            for segment in remote_log.context.segments.list_remote_log_segments(
                begun.tasks[0].metadata.topic_id_partition
            )
        }

    assert report.committed == ()
    assert "delete-topic" in report.failures[0].message
    assert states == {SegmentState.COPY_SEGMENT_STARTED}


def test_compacted_topics_and_topics_that_do_not_exist_are_refused(site: LiveSite) -> None:
    [topic] = site.topics
    site.kafka.client.create_topic(topic, 1, {"cleanup.policy": "compact"})

    refused = site.run("copy")

    assert refused.exit_code == 1
    assert "cleanup.policy" in refused.out + refused.err
    assert site.run("copy", "--topics", "no-such-topic").exit_code == 1


def test_a_segment_that_a_killed_worker_left_is_removed(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "killed")
        job = remote_log.write_copy_job("runs/killed", begun)
        roller = SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        # Its objects are whole, and no result says so: the second one of the job, so that nobody knows its offsets.
        for task in begun.tasks[:2]:
            outcome = roller.copy(
                task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock)
            )
            assert outcome.finished
        roller.close()
        report = remote_log.commit_copy(job.outcomes())
    assert report.committed == ()
    assert "its worker died" in report.failures[0].message

    while site.copied():
        pass
    assert site.run("expire").exit_code == 0

    assert ensure_as_stored(site) >= len(site.local()) - 2
    site.audited()


def test_what_brokers_send_is_limited_too(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)

    class Counted(QuotaLimit):
        def __init__(self) -> None:
            super().__init__()
            self.spent = 0
            self.others: list[Counted] = []

        def another(self) -> QuotaLimit:
            self.others.append(Counted())
            return self.others[-1]

        def spend(self, size: int) -> None:
            self.spent += size

    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "limited")
        job = remote_log.write_copy_job("runs/limited", begun)
        limit, sizes = Counted(), CopySizes(1 << 20, 4096, 1 << 20)
        job.run_group(
            0, remote_log.context.storage, sizes, wall_clock, limit=limit, access=remote_log.context.source.access
        )
        report = remote_log.commit_copy(job.outcomes())
    copied = sum(segment.size for segment in report.committed)
    [received] = limit.others
    assert limit.spent > copied > 0
    assert received.spent >= copied


def test_a_limited_copy_asks_for_little_at_once(site: LiveSite, tmp_path: Path) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(40, seed=1))

    def asked_at_once(limit: int) -> int:
        (root := tmp_path / str(limit)).mkdir()
        limits = {"remote.log.manager.copy.max.bytes.per.second": limit}
        with LiveSite(site.kafka, root, site.topics, limits).open() as remote_log:
            [named] = remote_log.context.source.named(topic, 0)
            assert isinstance(named, NamedPartition)
            log = remote_log.context.source.partition(named.topic_id_partition)
        assert log is not None and log.unsegmented is not None
        return log.unsegmented.rules.fetch_bytes

    assert asked_at_once(-1) == 8 << 20
    assert asked_at_once(100_000_000) == 1 << 20


def test_results_are_committed_only_up_to_a_lost_one(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(1000, seed=1), batch_num_messages=20)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "lost")
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        with closing(
            SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            outcomes = [
                roller.copy(task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock))
                for task in begun.tasks[:3]
            ]
        lost = replace(outcomes[1], finished=None, rolled=None)
        report = remote_log.commit_copy([outcomes[2], lost, outcomes[0]])
    assert [segment.start_offset for segment in report.committed] == [0]
    assert report.failures
    site.copied()
    site.audited()


def test_the_last_copy_of_records_is_kept_though_nobody_knew_its_offsets(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    site = replace(site, settings={"remote.log.orphan.grace.ms": 5000, "lease.duration.ms": 5000})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "killed")
        job = remote_log.write_copy_job("runs/killed", begun)
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        with closing(
            SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            for task in begun.tasks[:2]:
                last = roller.copy(
                    task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock)
                )
        assert last.rolled is not None
        remote_log.commit_copy(job.outcomes())
    client.delete_records(topic, 0, before=last.rolled.end_offset + 1)

    # Until the lease and the grace time are over.
    time.sleep(6)
    expired = site.run("expire")
    assert expired.exit_code == 1
    assert f"offsets {last.rolled.start_offset} to {last.rolled.end_offset}" in expired.out + expired.err
    assert site.run("repair").exit_code == 0

    with site.open() as remote_log:
        assert finished(remote_log)[-1].end_offset == last.rolled.end_offset
    assert read(site, Isolation.READ_UNCOMMITTED) == sent[: last.rolled.end_offset + 1]


def test_a_topic_that_is_compacted_meanwhile_is_not_committed(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "meanwhile")
        sizes = CopySizes(1 << 20, 4096, 1 << 20)
        with closing(
            SegmentRoller(begun.tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
        ) as roller:
            outcomes = [
                roller.copy(task, lambda known: copy_segment(known, remote_log.context.storage, sizes, wall_clock))
                for task in begun.tasks
            ]
        client.alter_topic(topic, {"cleanup.policy": "compact"})
        report = remote_log.commit_copy(outcomes)
    assert report.committed == ()
    assert "cleanup.policy" in report.failures[0].message
