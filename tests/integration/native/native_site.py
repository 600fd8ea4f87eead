"""A broker that tiers by itself, with topics in its LocalTieredStorage, and settings that read it in place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.tiering_kafka import TIERED, local_tiering_kafka
from support.command_line import CommandResult, run_on
from support.kafka_clients import Isolation as ClientIsolation
from support.native_tier import NATIVE
from support.records import varied_records
from support.remote_logs import RemoteLogFiles
from support.waiting import wait_for
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.native.metadata_topic import TOPIC

WAIT_SECONDS = 60
PLAIN, TRANSACTIONS, TRIMMED = TOPICS = ("plain", "transactions", "trimmed")
LOG_START = 1_000
"""Of TRIMMED, whose records before that were deleted."""


@dataclass(frozen=True)
class NativeSite:
    """The running broker, and settings that lead to it."""

    kafka: RealKafka
    remote: Path
    files: RemoteLogFiles

    def run(self, *arguments: object) -> CommandResult:
        return run_on(self.files, *arguments)

    def state(self) -> str:
        """Return a digest of every object of the remote tier, and of every record of every topic."""
        records = [self.consumed(topic) for topic in (TOPIC, *TOPICS)]
        return _digest(self.remote) + hashlib.sha256(repr(records).encode()).hexdigest()

    def consumed(self, topic: str, isolation: ClientIsolation = "read_uncommitted") -> list[Record]:
        """Return what a consumer reads of a topic, from its log start on."""
        start = LOG_START if topic == TRIMMED else 0
        return self.kafka.client.consume_all(topic, start=start, isolation=isolation)


@contextmanager
def running_site(kafka_programs: KafkaPrograms, state_directory: Path, root: Path) -> Iterator[NativeSite]:
    """Start the broker below `root`, write the topics, and wait until it has tiered them."""
    remote, kafka = root / "remote", local_tiering_kafka(kafka_programs, root, state_directory)
    remote.mkdir()
    # The jar of LocalTieredStorage logs into the folder that a program starts in.
    with chdir(root), kafka:
        for topic in TOPICS:
            kafka.client.create_topic(topic, 1, TIERED)
        for topic in (PLAIN, TRIMMED):
            kafka.client.produce(topic, varied_records(3_000, seed=1), batch_num_messages=50)
        _write_transactions(kafka)
        wait_for(lambda: is_tiered(kafka, *TOPICS), lambda: "the broker did not tier", WAIT_SECONDS)
        kafka.client.delete_records(TRIMMED, 0, LOG_START)
        wait_for(lambda: _is_trimmed(remote), lambda: "the broker did not delete", WAIT_SECONDS)
        files = RemoteLogFiles(
            root,
            properties={
                **NATIVE,
                "log.dirs": [],
                "rsm.config.url": remote.as_uri(),
                "rlmm.config.url": f"kafka://{kafka.bootstrap_servers}",
            },
        )
        yield NativeSite(kafka, remote, files)


def _write_transactions(kafka: RealKafka) -> None:
    """Write transactions of 50 records each, of which every third is aborted."""
    producer = kafka.client.producer(transactional_id="native", batch_num_messages=10)
    producer.init_transactions()
    records = iter(varied_records(3_000, seed=2))
    for number in range(60):
        producer.begin_transaction()
        for record in (next(records) for _ in range(50)):
            producer.produce(TRANSACTIONS, record.value, record.key, partition=0, timestamp=record.timestamp)
        producer.flush()
        producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction()


def is_tiered(kafka: RealKafka, *topics: str) -> bool:
    """Whether each topic's only local segment is the active one, after earlier ones."""
    local = [sorted((kafka.log_dir / f"{topic}-0").glob("*.log")) for topic in topics]
    return all(len(logs) == 1 and logs[0].stem.strip("0") for logs in local)


def _is_trimmed(remote: Path) -> bool:
    """Whether no segment of TRIMMED is left whose records are all before its log start."""
    bases = sorted(int(path.name[:20]) for path in remote.rglob(f"{TRIMMED}-0-*/*.log"))
    return bases[1] > LOG_START


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path} {path.stat().st_mtime_ns}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def plain(record: Record) -> tuple[object, ...]:
    """Return what a reader of either kind gives of a record."""
    return record.offset, record.timestamp, record.key, record.value, record.headers
