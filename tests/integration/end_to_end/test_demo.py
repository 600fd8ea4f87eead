"""`make demo` itself: on its own sample, and on the directory that a real broker left."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.kafka_clients import send
from support.records import varied_records
from tiered_storage_airflow.embedded.services import running_airflow


def run_demo(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiered_storage_airflow.demo", "--state", str(state), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def fingerprint(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def ranges(output: str, partition: str) -> tuple[str, str, str]:
    """The table's row of a partition: its expired, remote and local offsets."""
    offsets = r"(none|\d+ to \d+)"
    row = re.search(rf"^\s*{re.escape(partition)}\s+{offsets}\s+{offsets}\s+{offsets}\s", output, re.MULTILINE)
    assert row is not None, output
    return row[1], row[2], row[3]


def came_back_to_a_kafka_client(output: str) -> tuple[int, int, int]:
    """The demo's counts of records through the gateway: read, written, and expired."""
    found = re.search(r"([\d,]+) records came back to confluent-kafka of ([\d,]+) .* ([\d,]+) have expired", output)
    assert found is not None, output
    read, written, expired = (int(each.replace(",", "")) for each in found.groups())
    return read, written, expired


@pytest.mark.timeout(600)
def test_the_demo_verifies_every_record_of_its_sample(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "demo")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "topic customers has cleanup.policy=compact" in done.stdout
    for partition in ("orders-0", "orders-1", "orders-2", "payments-0", "payments-1", "clicks-0"):
        _, remote, local = ranges(done.stdout, partition)
        assert "none" not in (remote, local)
        assert int(local.split()[0]) > int(remote.split()[0]), "the oldest offsets are only remote"
    assert any(ranges(done.stdout, partition)[0] != "none" for partition in ("orders-0", "payments-1", "clicks-0"))
    read, written, expired = came_back_to_a_kafka_client(done.stdout)
    assert read + expired == written
    assert read > 0 < expired
    assert "All verified" in done.stdout
    assert "make up CONFIG=" in done.stdout
    assert running_airflow(tmp_path / "demo") is None


@pytest.mark.timeout(600)
def test_the_demo_verifies_a_private_copy_of_the_directory_of_a_broker_that_was_killed(
    start_kafka: Callable[[Path], RealKafka], tmp_path: Path
) -> None:
    log_dir = tmp_path / "log-dir"
    broker = start_kafka(log_dir)
    client = broker.client
    client.create_topic("demo-of-a-broker", 2, {"internal.segment.bytes": "65536"})
    for partition in (0, 1):
        client.produce(
            "demo-of-a-broker",
            varied_records(12000, seed=partition),
            partition=partition,
            codec="zstd",
            batch_size=16000,
        )
    client.create_topic("demo-compacted", 1, {"cleanup.policy": "compact"})
    producer = client.producer(transactional_id="demo", enable_idempotence="true", transaction_timeout_ms=600_000)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, "demo-of-a-broker", 1, varied_records(50, seed=2))
    broker.kill()

    before = fingerprint(log_dir)
    done = run_demo(tmp_path / "demo", "--log-dir", str(log_dir))

    assert done.returncode == 0, done.stdout + done.stderr
    assert fingerprint(log_dir) == before
    assert "__cluster_metadata-0 is left out" in done.stdout
    assert mentions(done.stdout, "demo-of-a-broker-1: ", "transaction", "offsets 12000 to 12049 ")
    for name in ("demo-of-a-broker-0", "demo-of-a-broker-1"):
        expired, remote, local = ranges(done.stdout, name)
        assert "none" not in (expired, remote, local)
        assert int(expired.split()[2]) + 1 == int(remote.split()[0])
        assert int(local.split()[0]) > int(remote.split()[0])
        assert local.endswith(" to 11999")


def test_the_demo_refuses_what_is_no_log_directory(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()

    done = run_demo(tmp_path / "demo", "--log-dir", str(tmp_path / "pictures"))

    assert done.returncode == 1
    assert mentions(done.stdout, tmp_path / "pictures", "Kafka log directory")
