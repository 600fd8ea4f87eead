"""Running brokers' partitions are copied from their leaders' files, which stay as they are, whatever a broker does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from integration.copies_beside_brokers import SECONDS, SIZES, closed_of, each_copied, leader_of, up_to
from integration.stored_segments import ensure_as_stored, read
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.live_sites import LONG, SEGMENT_BYTES, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.copy.copier import copy_segment
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller
from tiered_storage.remote_log.copy.tasks import CopyTask
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.source.fetched_log import FetchedLog
from tiered_storage.remote_log.source.leader_files import BrokerDirectories
from tiered_storage.remote_log.source.partition_log import LeaderFiles

CHECKPOINTS = {
    HIGH_WATERMARK_CHECKPOINT: "replica.high.watermark",
    RECOVERY_POINT_CHECKPOINT: "log.flush.offset",
    LOG_START_OFFSET_CHECKPOINT: "log.flush.start.offset",
}
"""A broker's checkpoint files, and what their intervals are named after."""


@pytest.fixture(scope="module")
def kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker of these tests alone: they kill it, and delete records and topics. It deletes segments soon."""
    directory = tmp_path_factory.mktemp("disk-kafka")
    # Only tests write its checkpoint files.
    hour = dict.fromkeys((f"{each}.checkpoint.interval.ms" for each in CHECKPOINTS.values()), "3600000")
    with RealKafka(kafka_programs, directory, properties={"log.initial.task.delay.ms": "100", **hour}) as started:
        yield started


@pytest.fixture
def site(kafka: RealKafka, tmp_path: Path, request: pytest.FixtureRequest) -> LiveSite:
    topic = request.node.name.partition("[")[0].removeprefix("test_")[:80]
    return LiveSite(kafka, tmp_path, (topic,), {"broker.log.dirs": f"1={kafka.log_dir}"})


@pytest.fixture
def no_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a copy that rolls anything from Fetch."""

    def refuse(*_: object) -> None:
        raise AssertionError("a segment was rolled from Fetch")

    monkeypatch.setattr(FetchedLog, "next_segment", refuse)


def everything_below(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with what changes if somebody writes to it, or replaces it."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        found[str(path.relative_to(directory))] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


@pytest.mark.usefixtures("no_fetch")
def test_closed_segments_are_copied_as_files_and_nothing_is_written_beside_them(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(700, seed=1), batch_num_messages=40)
    directory = site.kafka.log_dir / f"{topic}-0"
    lock = (site.kafka.log_dir / ".lock").stat()
    before = everything_below(directory)

    copied = site.copied()

    assert copied == closed_of(directory)
    assert len(copied) > 3
    assert site.copied() == []
    assert ensure_as_stored(site) == len(copied)
    site.audited()
    assert everything_below(directory) == before
    now = (site.kafka.log_dir / ".lock").stat()
    assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (lock.st_ino, lock.st_mtime_ns, lock.st_ctime_ns)


def test_a_restore_gives_back_the_files(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(700, seed=1), codec="zstd", batch_num_messages=40, enable_idempotence="true")
    producer = client.producer(transactional_id=topic, batch_num_messages=10)
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(50):
        producer.produce(topic, b"aborted" * 40, partition=0, timestamp=number + 1)
    producer.flush(SECONDS)
    producer.abort_transaction()
    client.wait_until_decided(topic)
    client.produce(topic, varied_records(400, seed=2), batch_num_messages=40)
    copied = site.copied()
    restored = site.root / "restored"

    result = site.run("restore", topic, "--to-directory", restored, "--validation", "records")

    assert result.exit_code == 0, result.out + result.err
    local = {segment.base_offset: segment for segment in site.local()}
    found = list_segments(restored / f"{topic}-0")
    for segment in found[: len(copied)]:
        assert segment.log_path.read_bytes() == local[segment.base_offset].log_path.read_bytes()
    assert [segment.base_offset for segment in found][: len(copied)] == [start for start, _ in copied]
    assert any(segment.has_transaction_index() for segment in found)


def test_an_old_tail_is_fetched_and_the_rest_of_its_segment_after_it(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, {"segment.ms": "60000", **SMALL_SEGMENTS})

    def produce(count: int) -> None:
        records = [Record(0, 1_700_000_000_000, b"key", os.urandom(100)) for _ in range(count)]
        client.produce(topic, records, batch_num_messages=10)

    produce(20)
    assert site.copied() == [(0, 19)]
    produce(600)
    closed = closed_of(site.kafka.log_dir / f"{topic}-0")

    [(_, first_end), *rest] = closed
    assert site.copied() == [(20, first_end), *rest]
    assert site.copied() == [(closed[-1][1] + 1, 619)]
    assert site.copied() == []
    assert read(site, Isolation.READ_UNCOMMITTED) == client.consume_all(topic)
    site.audited()


def test_records_held_back_by_an_open_transaction_are_copied_once_it_is_decided(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(300, seed=1), batch_num_messages=20)
    held = client.producer(transactional_id=topic, enable_idempotence="true")
    held.init_transactions()
    held.begin_transaction()
    held.produce(topic, b"held", partition=0)
    held.flush(SECONDS)
    client.produce(topic, varied_records(300, seed=2), batch_num_messages=20)
    closed = closed_of(site.kafka.log_dir / f"{topic}-0")

    stable = site.copied()

    assert stable == [(start, end) for start, end in closed if end < 300]
    held.abort_transaction()
    client.wait_until_decided(topic)
    assert site.copied() == closed[len(stable) :]
    assert ensure_as_stored(site) == len(closed)
    site.audited()


def hold(site: LiveSite) -> Producer:
    """Begin a transaction: the stable offset stays at its start until it is decided."""
    held = site.kafka.client.producer(transactional_id=random_uuid(), enable_idempotence="true")
    held.init_transactions()
    held.begin_transaction()
    held.produce(site.topics[0], b"held", partition=0)
    held.flush(SECONDS)
    return held


def test_what_checkpoint_files_say_is_not_believed(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    copied: list[tuple[int, int]] = []
    for seed, false in enumerate((None, 0, 1 << 40)):
        before = client.produce(topic, varied_records(300, seed=seed), batch_num_messages=20)
        stable = 1 + max(each.offset for each in before)
        held = hold(site)
        client.produce(topic, varied_records(300, seed=seed + 10), batch_num_messages=20)
        for name in CHECKPOINTS:
            path = site.kafka.log_dir / name
            path.unlink(missing_ok=True)
            if false is not None:
                write_offset_checkpoint(path, {(topic, 0): false})

        copied += site.copied()

        closed = closed_of(site.kafka.log_dir / f"{topic}-0")
        assert copied == [(start, end) for start, end in closed if end < stable], false
        held.abort_transaction()
        client.wait_until_decided(topic)
    assert ensure_as_stored(site) == len(copied)
    site.audited()


def test_a_broker_that_came_back_without_its_checkpoint_files_is_copied_on(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    copied = site.copied()
    stable = 1 + max(each.offset for each in sent)
    held = hold(site)
    client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    site.kafka.kill()
    for name in CHECKPOINTS:
        (site.kafka.log_dir / name).unlink(missing_ok=True)
    site.kafka.start()
    wait_for(lambda: leader_of(site.kafka, topic, 0) == 1, lambda: "the broker does not lead again", SECONDS)

    copied += site.copied()

    closed = closed_of(site.kafka.log_dir / f"{topic}-0")
    assert copied == [(start, end) for start, end in closed if end < stable]
    held.abort_transaction()
    client.wait_until_decided(topic)
    copied += site.copied()
    assert copied == closed_of(site.kafka.log_dir / f"{topic}-0")
    assert read(site, Isolation.READ_UNCOMMITTED) == up_to(client.consume_all(topic), copied[-1][1])
    site.audited()


@pytest.mark.usefixtures("no_fetch")
def test_preallocated_segments_are_copied_once_closed(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, {"preallocate": "true", "segment.bytes": str(1 << 20), **LONG})
    client.produce(topic, varied_records(20_000, seed=1), batch_num_messages=200)
    *_, active = site.local()
    assert active.log_path.stat().st_size == 1 << 20
    assert active.log_path.read_bytes()[-1000:] == bytes(1000)

    copied = site.copied()

    assert copied == closed_of(site.kafka.log_dir / f"{topic}-0")
    assert len(copied) > 1
    assert ensure_as_stored(site, indexes=False) == len(copied)
    site.audited()


def test_every_acknowledged_record_is_copied_once_while_the_broker_rolls_and_deletes(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    segments = 40
    client.create_topic(topic, 1, {"retention.bytes": str(segments * SEGMENT_BYTES), **SMALL_SEGMENTS, **LONG})
    sent: list[Record] = []
    remote_end, stopped = [-1], Event()

    def produce() -> None:
        seed = 0
        while not stopped.is_set():
            # Retention must only ever delete what is remote.
            if len(sent) - remote_end[0] < 1500:
                sent.extend(client.produce(topic, varied_records(200, seed=seed), batch_num_messages=20))
                seed += 1
            else:
                time.sleep(0.01)

    producing = Thread(target=produce)
    producing.start()
    try:
        deadline = time.monotonic() + SECONDS
        while remote_end[0] < 5000:
            assert time.monotonic() < deadline
            if copied := site.copied():
                remote_end[0] = copied[-1][1]
                # Into the middle of a segment that is remote.
                client.delete_records(topic, 0, before=max(0, remote_end[0] - 700))
    finally:
        stopped.set()
        producing.join()
    while site.copied():
        pass

    with site.open() as remote_log:
        copies = finished(remote_log)
    assert [after.start_offset for after in copies[1:]] == [one.end_offset + 1 for one in copies[:-1]]
    assert site.local()[0].base_offset > 0
    assert read(site, Isolation.READ_UNCOMMITTED) == up_to(sent, copies[-1].end_offset)
    site.audited()


def test_a_segment_that_is_deleted_before_it_is_read_is_named_and_left(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(700, seed=1), batch_num_messages=20)
    second = site.local()[1].base_offset

    def delete(known: CopyTask) -> None:
        client.delete_records(topic, 0, before=second)
        wait_for(lambda: not Path(known.location).exists(), lambda: "the broker deletes nothing", SECONDS)

    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "deleted")
        [outcome] = each_copied(remote_log, begun.tasks[:1], delete)
        report = remote_log.commit_copy([outcome])

    assert outcome.failure is not None
    assert outcome.failure.retriable
    assert mentions(outcome.failure.message, "deleted", "broker 1")
    assert report.committed == ()
    assert site.copied()[0][0] == second
    site.audited()


def test_a_segment_that_is_deleted_while_it_is_read_is_whole(site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(700, seed=1), batch_num_messages=20)
    first, second, *_ = site.local()
    content = first.log_path.read_bytes()
    small = replace(SIZES, window=64 << 10)
    with site.open() as remote_log:
        storage = remote_log.context.storage
        begun = remote_log.begin_copy(remote_log.plan_copy(), "deleted")
        send = storage.copy_log_segment_data

        def late(metadata: object, data: object) -> bytes:
            chunks = data.chunks  # type: ignore[attr-defined]

            def deleted() -> Iterator[memoryview]:
                for chunk in chunks:
                    if first.log_path.exists():
                        client.delete_records(topic, 0, before=second.base_offset)
                        wait_for(lambda: not first.log_path.exists(), lambda: "the broker deletes nothing", SECONDS)
                    yield chunk

            return send(metadata, replace(data, chunks=deleted()))  # type: ignore[arg-type, type-var]

        monkeypatch.setattr(storage, "copy_log_segment_data", late)
        with closing(SegmentRoller(begun.tasks, remote_log.context.source.access, storage, wall_clock)) as roller:
            outcome = roller.copy(begun.tasks[0], lambda known: copy_segment(known, storage, small, wall_clock))
        monkeypatch.undo()
        report = remote_log.commit_copy([outcome])
        [committed] = report.committed
        assert b"".join(storage.fetch_log_segment(committed)) == content
    site.copied()
    site.audited()


def test_a_topic_that_is_deleted_meanwhile_is_left(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    directory = site.kafka.log_dir / f"{topic}-0"
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "deleted")
        admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(SECONDS)
        wait_for(lambda: not directory.exists(), lambda: "the broker renames nothing", SECONDS)
        outcomes = each_copied(remote_log, begun.tasks)
        report = remote_log.commit_copy(outcomes)

    assert report.committed == ()
    assert all(outcome.failure is not None and f"has no {topic}-0" in outcome.failure.message for outcome in outcomes)


def test_a_killed_broker_that_came_back_is_copied_on(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    first = site.copied()
    site.kafka.kill()
    site.kafka.start()
    wait_for(lambda: leader_of(site.kafka, topic, 0) == 1, lambda: "the broker does not lead again", SECONDS)
    sent += client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)

    rest = site.copied()

    assert [*first, *rest] == closed_of(site.kafka.log_dir / f"{topic}-0")
    assert read(site, Isolation.READ_UNCOMMITTED) == up_to(sent, rest[-1][1])
    site.audited()


def test_a_worker_that_does_not_see_the_files_names_them_and_copies_nothing(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    missing = site.root / "not-mounted"
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "elsewhere")
        tasks = tuple(_with_files(task, BrokerDirectories({1: (missing,)}).files_of(1)) for task in begun.tasks)
        outcomes = each_copied(remote_log, tasks)
        report = remote_log.commit_copy(outcomes)

    assert report.committed == ()
    for outcome in outcomes:
        assert outcome.failure is not None
        for named in ("broker 1", str(missing), "broker.log.dirs", "run the copy on a host that sees them"):
            assert named in outcome.failure.message
    assert not list((site.root / "state").rglob("*.log"))
    site.copied()


@pytest.mark.parametrize("place", ["missing", "of another broker", "of another cluster"])
def test_a_plan_names_directories_that_are_not_the_leaders(site: LiveSite, place: str) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(f"{topic}-{place.replace(' ', '-')}", 1, SMALL_SEGMENTS | LONG)
    folder = site.root / "logs"
    known = MetaProperties.read(site.kafka.log_dir / META_PROPERTIES)
    if place != "missing":
        folder.mkdir()
        other = {"of another broker": replace(known, node_id=7), "of another cluster": replace(known, cluster_id="x")}
        other[place].write(folder / META_PROPERTIES)
    named = replace(site, topics=(f"{topic}-{place.replace(' ', '-')}",), settings={"broker.log.dirs": f"1={folder}"})

    for command in ("copy", "doctor"):
        result = named.run(command)
        assert result.exit_code == 1
        shown = " ".join((result.out + result.err).split())
        assert "broker.log.dirs" in shown
        assert str(folder) in shown.replace(" ", "")
        assert "broker 1" in shown


def test_doctor_finds_the_directories_of_the_broker(site: LiveSite) -> None:
    found = site.run("doctor", "--json")

    shown = [row for row in found.rows if row["check"] == "broker.log.dirs"]
    [(verdict, message)] = [(row["verdict"], row["message"]) for row in shown]
    assert verdict == "ok"
    assert mentions(message, site.kafka.log_dir, "broker 1,")


def _with_files(task: CopyTask, files: LeaderFiles) -> CopyTask:
    assert task.roll is not None
    return replace(task, roll=replace(task.roll, rules=replace(task.roll.rules, files=files)))
