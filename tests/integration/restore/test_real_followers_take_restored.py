"""A follower in a fresh cluster fetches what was restored into its leader, though that was written by later leaders."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run_on
from support.local_logs import read_all
from support.remote_logs import a_copied_remote_log, append_as_later_leader, records_after_later_leader
from support.waiting import wait_for
from tiered_storage.kafka_log.log.local_log import LocalLog

SECONDS = 60


@pytest.mark.nightly
def test_a_follower_takes_all_of_it(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path / "remote-log")
    append_as_later_leader(files)
    leader = RealKafka(kafka_programs, tmp_path / "leader")
    with leader:
        follower = leader.another(2, tmp_path / "follower")
        with follower:
            admin = AdminClient({"bootstrap.servers": leader.bootstrap_servers})
            topic = NewTopic("orders", num_partitions=1, replication_factor=2)
            admin.create_topics([topic], operation_timeout=SECONDS)["orders"].result(SECONDS)
            wait_for((follower.log_dir / "orders-0").exists, seconds=SECONDS)
        with leader.stopped() as log_dir:
            assert run_on(files, "restore", "orders", "--to-directory", log_dir).exit_code == 0
        with follower:
            assert leader.client.consume_all("orders") == records_after_later_leader()
            wait_for(lambda: _log_bytes(follower) == _log_bytes(leader), seconds=SECONDS)
    with LocalLog.open(follower.log_dir / "orders-0") as log:
        assert read_all(log) == records_after_later_leader()
        assert len({entry.epoch for entry in log.leader_epochs}) == 1


def _log_bytes(kafka: RealKafka) -> int:
    return sum(path.stat().st_size for path in (kafka.log_dir / "orders-0").glob("*.log"))
