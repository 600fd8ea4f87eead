"""Offsets by name and by time equal a real broker's ListOffsets, at both isolation levels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import IsolationLevel, TopicPartition, admin

from servers.real_kafka import RealKafka
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.settings.settings import load_settings

TOPIC = "listed"
TIME = 1_700_000_000_000
_KAFKAS: Any = admin.OffsetSpec  # type: ignore[attr-defined]
SPECS: dict[Any, Any] = {
    OffsetSpec.EARLIEST: _KAFKAS.earliest(),
    OffsetSpec.LATEST: _KAFKAS.latest(),
    OffsetSpec.MAX_TIMESTAMP: _KAFKAS.max_timestamp(),
    **{TIME + after: _KAFKAS.for_timestamp(TIME + after) for after in (0, 10, 15, 20, 25, 50, 100, 101)},
}
LEVELS = {
    Isolation.READ_UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED,
    Isolation.READ_COMMITTED: IsolationLevel.READ_COMMITTED,
}
Answers = dict[tuple[Isolation, int], FoundOffset | None]


@pytest.mark.parametrize("largest", ["committed", "open", "aborted"])
def test_offsets_equal_a_brokers_list_offsets(
    start_kafka: Callable[[Path], RealKafka], tmp_path: Path, largest: str
) -> None:
    """The record with the largest timestamp is of a transaction of that kind; two leaders wrote."""
    kafka = start_kafka(tmp_path / "log-dir")
    kafka.client.create_topic(TOPIC)
    producer = kafka.client.producer()
    for number in range(3):
        producer.produce(TOPIC, b"plain", partition=0, timestamp=TIME + 10 * number)
    producer.flush()
    sending = kafka.client.producer(transactional_id="sending")
    sending.init_transactions()
    sending.begin_transaction()
    sending.produce(TOPIC, b"transactional", partition=0, timestamp=TIME + 100)
    sending.flush()
    if largest != "open":
        (sending.commit_transaction if largest == "committed" else sending.abort_transaction)()
        # Waits until the coordinator has noted the end: otherwise it writes the marker again after the restart.
        kafka.client.producer(transactional_id="sending").init_transactions()
    with kafka.stopped():
        pass
    producer = kafka.client.producer()
    producer.produce(TOPIC, b"later", partition=0, timestamp=TIME + 50)
    producer.flush()
    expected = of_broker(kafka)
    with kafka.stopped() as log_dir:
        assert of_reader(tmp_path, log_dir) == expected
    assert {each.leader_epoch for each in expected.values() if each} == {0, 2}


def of_broker(kafka: RealKafka) -> Answers:
    client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    found: Answers = {}
    for isolation, level in LEVELS.items():
        for spec, asked in SPECS.items():
            answers = client.list_offsets({TopicPartition(TOPIC, 0): asked}, isolation_level=level)
            [answer] = [future.result() for future in answers.values()]
            epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
            found[isolation, spec] = FoundOffset(answer.offset, answer.timestamp, epoch) if answer.offset >= 0 else None
    return found


def of_reader(root: Path, log_dir: Path) -> Answers:
    config = root / "settings.yaml"
    config.write_text(yaml.safe_dump({"log.dirs": [str(log_dir)], "state.directory": str(root / "state")}))
    settings = load_settings(config, environ={})
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        logs = [each for each in remote_log.context.source.partitions() if isinstance(each, PartitionLog)]
        [partition] = [each.topic_id_partition for each in logs if each.topic_id_partition.topic == TOPIC]
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            return {
                (isolation, spec): reader.offsets(partition, spec, isolation) for isolation in LEVELS for spec in SPECS
            }
