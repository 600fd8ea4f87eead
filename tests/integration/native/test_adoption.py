"""Leave the tiering of a real broker: adopt its topics, turn it off, and go on with ordinary copies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from integration.native.native_site import (
    LOG_START,
    PLAIN,
    TOPICS,
    TRANSACTIONS,
    TRIMMED,
    WAIT_SECONDS,
    NativeSite,
    is_tiered,
    plain,
)
from servers.tiering_kafka import TIERED
from support.command_line import run, run_on
from support.kafka_clients import Isolation as ClientIsolation
from support.processes import killed
from support.records import varied_records
from support.remote_logs import RemoteLogFiles, assert_clean, segments_of
from support.waiting import wait_for
from tiered_storage.remote_log.adopt import adoption
from tiered_storage.remote_log.adopt.tier_segment import TierSegment
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation

LEAVING = "leaving"
KILLED_AT = 4


@pytest.fixture
def ours(tmp_path: Path) -> RemoteLogFiles:
    return RemoteLogFiles(tmp_path, properties={"log.dirs": []})


@pytest.mark.parametrize("topic", TOPICS)
def test_an_adopted_topic_is_read_as_kafkas_consumers_read_it(
    site: NativeSite, ours: RemoteLogFiles, topic: str
) -> None:
    adopted = run_on(ours, "adopt", topic, "--from", site.files.config, "--json")

    assert adopted.exit_code == 0, adopted.err + adopted.out
    assert len(adopted.rows) > 3
    of_kafka = sorted(site.remote.rglob(f"{topic}-0-*/*.log"))
    assert [path.read_bytes() for path in ours.objects(".log")] == [path.read_bytes() for path in of_kafka]
    with ours.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        end = finished(segments_of(remote_log, partition))[-1].end_offset
        state = remote_log.context.segments.partition_state(partition)
        assert state.log_start_offset == (LOG_START if topic == TRIMMED else 0)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            for isolation in Isolation:
                level: ClientIsolation = (
                    "read_committed" if isolation is Isolation.READ_COMMITTED else "read_uncommitted"
                )
                expected = [plain(each) for each in site.consumed(topic, level) if each.offset <= end]
                assert len(expected) > 1_000
                start = state.log_start_offset
                assert [plain(each) for each in reader.records(partition, start, isolation=isolation)] == expected
    assert run_on(ours, "audit", "--deep").exit_code == 0


def test_a_lost_transaction_index_is_built_again(site: NativeSite, ours: RemoteLogFiles) -> None:
    [lost, *_] = sorted(site.remote.rglob(f"{TRANSACTIONS}-0-*/*.txnindex"))
    content = lost.read_bytes()
    lost.unlink()
    try:
        adopted = run_on(ours, "adopt", TRANSACTIONS, "--from", site.files.config)
    finally:
        lost.write_bytes(content)

    assert adopted.exit_code == 1
    assert "transaction" in adopted.err.casefold()
    with ours.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            read = [each.offset for each in reader.records(partition, 0, isolation=Isolation.READ_COMMITTED)]
    consumed = site.consumed(TRANSACTIONS, "read_committed")
    assert read == [each.offset for each in consumed[: len(read)]]


def test_a_killed_adoption_goes_on_where_it_ended(site: NativeSite, ours: RemoteLogFiles) -> None:
    ended = killed(adopt_until_killed, ours, site.files.config)
    before = adopted_segments(ours)
    ours.clock.step(ours.settings().lease_duration_ms + 1)

    resumed = run_on(ours, "adopt", PLAIN, "--from", site.files.config, "--json")
    again = run_on(ours, "adopt", PLAIN, "--from", site.files.config, "--json")

    assert ended == -signal.SIGKILL
    assert len(before) == KILLED_AT - 1
    after = adopted_segments(ours)
    assert resumed.exit_code == 0, resumed.err
    assert len(resumed.rows) == len(after) - len(before) > 0
    assert after[: len(before)] == before
    assert (again.exit_code, again.rows) == (0, [])
    with ours.open() as remote_log:
        assert_clean(remote_log, None)


def adopt_until_killed(ours: RemoteLogFiles, native: Path) -> None:
    """Adopt PLAIN, one segment a round, and kill this process within the copy of one of them."""
    adoption.RUN_SEGMENTS = adoption.RUNS_A_ROUND = 1
    read, begun = TierSegment.windows, list[str]()

    def windows(self: TierSegment, *arguments: Any, **options: Any) -> Iterator[Any]:
        is_copy = "window_bytes" in options  # else a look at the batch that is continued
        if is_copy:
            begun.append(self.name)
        for window in read(self, *arguments, **options):
            yield window
            if is_copy and len(begun) == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(TierSegment, "windows", windows):
        ended = run_on(ours, "adopt", PLAIN, "--from", native)
    raise AssertionError(f"it was not killed: {ended}")


def adopted_segments(ours: RemoteLogFiles) -> list[RemoteLogSegmentMetadata]:
    with ours.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        return finished(segments_of(remote_log, partition))


def test_a_site_leaves_kafkas_tiering_without_losing_a_record(site: NativeSite, ours: RemoteLogFiles) -> None:
    """The steps of docs/native-clusters.md; at their end the brokers have deleted what they had tiered."""
    client, native = site.kafka.client, site.files.config
    client.create_topic(LEAVING, 1, TIERED)
    client.produce(LEAVING, varied_records(2_000, seed=4), batch_num_messages=50)
    wait_for(lambda: is_tiered(site.kafka, LEAVING), lambda: "the broker did not tier", WAIT_SECONDS)
    client.alter_topic(
        LEAVING, {"remote.log.copy.disable": "true", "local.retention.ms": "-2", "local.retention.bytes": "-2"}
    )
    client.produce(LEAVING, varied_records(1_000, seed=5), batch_num_messages=50)
    consumed = [plain(each) for each in client.consume_all(LEAVING)]
    ours.properties["bootstrap.servers"] = site.kafka.bootstrap_servers

    adopted = run("adopt", LEAVING, "--from", native, "--config", ours.config, "--json")
    audited = run("audit", "--deep", "--topics", LEAVING, "--config", ours.config)
    client.alter_topic(LEAVING, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
    of_kafka = site.remote / "kafka-tiered-storage"
    wait_for(lambda: not [*of_kafka.glob(f"{LEAVING}-0-*/*.log")], lambda: "the broker deleted nothing", WAIT_SECONDS)
    enabled = run("topics", "enable", LEAVING, "--config", ours.config)
    copied = run("copy", "--topics", LEAVING, "--config", ours.config, "--json")

    assert (adopted.exit_code, audited.exit_code) == (0, 0), adopted.err + audited.err
    assert (enabled.exit_code, copied.exit_code) == (0, 0), enabled.err + copied.err
    [*_, last] = adopted.rows
    assert copied.rows[0]["start_offset"] == last["end_offset"] + 1
    end = copied.rows[-1]["end_offset"]
    assert end > 2_000
    with ours.open() as remote_log:
        partition = remote_log.find_partition(LEAVING, 0)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            read = [plain(each) for each in reader.records(partition, 0, end_offset=end + 1)]
    assert read == consumed[: end + 1]
