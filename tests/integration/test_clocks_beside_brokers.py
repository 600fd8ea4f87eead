"""Clocks an hour apart, ours or the brokers': nothing is deleted early, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from servers.real_kafka import RealKafka
from support.clocks import put_at
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from tiered_storage import clock
from tiered_storage.kafka_log.records.record import Record
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
