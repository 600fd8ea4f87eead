"""Clocks an hour apart, ours or the brokers': nothing is deleted early, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from confluent_kafka import Consumer, TopicPartition

from integration.stored_segments import read
from servers.real_kafka import RealKafka
from support.clocks import put_at
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished, log_start
from support.records import varied_records
from tiered_storage import clock
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

HOUR_MS = 3_600_000
DELETES = {
    "remote.storage.enable": True,
    "local.deletion.allowed": True,
    "remote.deletion.allowed": True,
    "local.retention.ms": HOUR_MS // 2,
    "retention.ms": HOUR_MS // 2,
}


@contextmanager
def our_clock(apart_ms: int) -> Iterator[None]:
    """Set this machine's clock so far ahead, for the store in its directory too; the brokers keep theirs."""
    moved = SimpleNamespace(
        time_ns=lambda: time.time_ns() + apart_ms * 1_000_000,
        clock_gettime_ns=time.clock_gettime_ns,
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
    )
    with mock.patch.object(clock, "time", moved), mock.patch.object(LocalDirectory, "put", put_at(clock.wall_clock)):
        yield


def ends(site: LiveSite) -> list[int]:
    with site.open() as remote_log:
        return [segment.end_offset for segment in finished(remote_log)]


@pytest.mark.parametrize("apart_ms", [-HOUR_MS, HOUR_MS], ids=["brokers ahead", "brokers behind"])
def test_a_clock_of_the_cluster_that_is_an_hour_apart_is_named(
    real_kafka: RealKafka, tmp_path: Path, apart_ms: int
) -> None:
    topic, client = f"clock-named-{'behind' if apart_ms < 0 else 'before'}", real_kafka.client
    site = LiveSite(real_kafka, tmp_path, (topic,), {})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)

    with our_clock(apart_ms):
        examined = site.run("doctor", "--json")
        runs = [site.run(command) for command in ("plan", "copy")]
    in_step = [site.run(command, "--json") for command in ("doctor", "plan", "copy")]

    assert examined.exit_code == 1
    assert [result.exit_code for result in runs] == [0, 0]
    for result in (examined, *runs):
        assert mentions(result.out + result.err, "node 1", "active controller", "clock.max.skew.ms", "NTP")
    assert "agrees with this machine's" in in_step[0].out
    assert all("apart" not in result.out + result.err for result in in_step)
    assert ends(site)


def test_our_clock_an_hour_ahead_deletes_nothing_in_either_tier(real_kafka: RealKafka, tmp_path: Path) -> None:
    topic, client = "clock-ahead", real_kafka.client
    site = LiveSite(real_kafka, tmp_path, (topic,), {"topics": {topic: DELETES}, "enable.min.retention.margin.ms": 0})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    now = clock.wall_clock()
    young = [replace(one, timestamp=now) for one in varied_records(400, seed=1)]
    client.produce(topic, young, batch_num_messages=20)
    site.copied()
    before = ends(site)
    assert before
    for command in ("expire", "retain"):
        assert site.run(command).exit_code == 0

    with our_clock(HOUR_MS):
        refused = [site.run(command) for command in ("expire", "retain")]
        client.produce(topic, young, batch_num_messages=20)
        copied = site.copied()

    for result in refused:
        assert result.exit_code == 1
        assert mentions(result.out + result.err, "clock shows", "should show", "NTP")
    assert ends(site)[: len(before)] == before
    assert copied
    assert client.consume_all(topic)[0].offset == 0
    site.audited()


@pytest.mark.parametrize("apart_ms", [-HOUR_MS, HOUR_MS], ids=["brokers ahead", "brokers behind"])
def test_records_that_brokers_with_another_clock_stamped_are_all_copied(
    real_kafka: RealKafka, tmp_path: Path, apart_ms: int
) -> None:
    topic, client = f"clock-{'behind' if apart_ms < 0 else 'before'}", real_kafka.client
    site = LiveSite(real_kafka, tmp_path, (topic,), {})
    stamped = {"message.timestamp.type": "LogAppendTime", "segment.ms": "1800000"}
    client.create_topic(topic, 1, SMALL_SEGMENTS | stamped)
    sent = client.produce(topic, [Record(0, 1, b"key", bytes(100)) for _ in range(400)], batch_num_messages=20)

    with our_clock(apart_ms):
        while site.copied():
            pass

    # By a clock behind the brokers' no tail is old yet; by one ahead of it the tail is.
    assert ends(site)[-1] == sent[-1].offset if apart_ms > 0 else ends(site)[-1] < sent[-1].offset
    while site.copied():
        pass
    site.audited()


def test_a_broker_an_hour_behind_deletes_only_what_is_remote_and_read(real_kafka: RealKafka, tmp_path: Path) -> None:
    """By its timestamps all is an hour old already, which is past local retention."""
    topic, client = "trimmed-an-hour-behind", real_kafka.client
    trimmed = {name: value for name, value in DELETES.items() if not name.startswith(("retention", "remote.deletion"))}
    site = LiveSite(real_kafka, tmp_path, (topic,), {"topics": {topic: trimmed}})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG | {"message.timestamp.type": "LogAppendTime"})
    produced = [Record(0, 1, b"key", bytes(100)) for _ in range(800)]

    with our_clock(HOUR_MS):
        sent = client.produce(topic, produced, batch_num_messages=20)
        site.copied()
        remote = ends(site)
        read_to = remote[1] - 5
        with closing(Consumer({"bootstrap.servers": real_kafka.bootstrap_servers, "group.id": topic})) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, read_to)], asynchronous=False)
        retained = site.run("retain")
        site.audited()
        both = read(site, Isolation.READ_UNCOMMITTED)

    assert retained.exit_code == 0, retained.err
    assert mentions(retained.err, f"{topic} at offset {read_to}")
    start = log_start(real_kafka, topic)
    assert start == remote[0] + 1 <= read_to
    assert [record.offset for record in both] == list(range(remote[-1] + 1))
    assert [record.offset for record in client.consume_all(topic, start=start)] == list(range(start, len(sent)))
    assert ends(site) == remote
