"""A gateway without brokers on logs that LocalLog wrote, and what clients have to read through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from support.command_line import run
from support.records import varied_records
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

CLUSTER_ID = "standalone-gateways"
PLAIN, DECIDED = "standalone-plain", "standalone-decided"
TOPIC_IDS = {PLAIN: encode_uuid(b"\x21" * 16), DECIDED: encode_uuid(b"\x22" * 16)}
BATCH_RECORDS = 20
BATCHES_BY_CODEC = 15
PARTITIONS = 2
_SEGMENTS = LogConfig(segment_bytes=16_384)


@dataclass(frozen=True, slots=True)
class StandaloneSite:
    """Two topics in a log directory below `root`: PLAIN in every codec, DECIDED in transactions.

    `records` has what is in each partition, by its topic and number; `committed` what a read_committed consumer gets.
    """

    root: Path
    properties: Mapping[str, Any]
    records: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    committed: dict[tuple[str, int], list[Record]] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        return self.root / "kafka-logs"

    @property
    def port(self) -> int:
        return int(self.properties["gateway.port"])

    @property
    def config(self) -> Path:
        """The settings file of the log directory and the store."""
        return self.write_config("settings.yaml", {"log.dirs": [str(self.logs)]})

    def store_alone(self, port: int) -> Path:
        """Write the settings file of a gateway that serves the store alone at `port`."""
        return self.write_config(
            "store-alone.yaml", {"cluster.id": CLUSTER_ID, "gateway.port": port, "gateway.metrics.port": 0}
        )

    def write_config(self, name: str, more: Mapping[str, Any]) -> Path:
        path = self.root / name
        settings = {
            "state.directory": str(self.root / "state"),
            "log.end.is.stable": True,
            "log.local.retention.bytes": 20_000,
            "topics": {
                topic: {"remote.storage.enable": True, "local.deletion.allowed": True} for topic in (PLAIN, DECIDED)
            },
            **self.properties,
            **more,
        }
        path.write_text(yaml.safe_dump(settings))
        return path

    def run(self, *command: object) -> None:
        done = run(*command, "--config", self.config)
        assert done.exit_code == 0, done.out + done.err


def written_site(root: Path, properties: Mapping[str, Any] | None = None) -> StandaloneSite:
    """Write the logs, copy what is closed, and trim it."""
    site = StandaloneSite(root, {"gateway.port": free_first_port([0]), **(properties or {})})
    with LogDirectoryWriter.create(site.logs, CLUSTER_ID) as writer:
        for number in range(PARTITIONS):
            log = writer.create_log(PLAIN, number, TOPIC_IDS[PLAIN], _SEGMENTS)
            site.records[PLAIN, number] = site.committed[PLAIN, number] = _in_every_codec(log, number)
        log = writer.create_log(DECIDED, 0, TOPIC_IDS[DECIDED], _SEGMENTS)
        site.records[DECIDED, 0], site.committed[DECIDED, 0] = _in_transactions(log)
    site.run("copy")
    site.run("retain")
    return site


def _in_every_codec(log: LocalLog, number: int) -> list[Record]:
    found: list[Record] = []
    for codec in Compression:
        for batch in range(BATCHES_BY_CODEC):
            found += _append(log, 1000 * number + 100 * codec + batch, codec)
    return found


def _in_transactions(log: LocalLog) -> tuple[list[Record], list[Record]]:
    """Two producers in turns, each other one's transactions aborted, the last of each one left open."""
    everything: list[Record] = []
    committed: list[Record] = []
    waiting: dict[int, list[Record]] = {5001: [], 5002: []}
    sequences = dict.fromkeys(waiting, 0)
    for turn in range(80):
        producer = (5001, 5002)[turn % 2]
        batch = _append(log, 5000 + turn, Compression.NONE, producer, sequences[producer])
        sequences[producer] += len(batch)
        everything += batch
        waiting[producer] += batch
        if turn % 5 == 4 and turn < 75:
            kind = ControlRecordType.ABORT if turn % 3 else ControlRecordType.COMMIT
            log.append_end_marker(producer, 0, kind)
            committed += waiting[producer] if kind is ControlRecordType.COMMIT else []
            waiting[producer] = []
    open_from = min(each[0].offset for each in waiting.values() if each)
    decided = [each for each in committed if each.offset < open_from]
    return everything, sorted(decided, key=lambda each: each.offset)


def _append(
    log: LocalLog, seed: int, codec: Compression, producer_id: int | None = None, sequence: int = -1
) -> list[Record]:
    batch = list(varied_records(BATCH_RECORDS, seed=seed))
    if producer_id is None:
        base = log.append(batch, codec)
    else:
        base = log.append(
            batch, codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
    return [replace(each, offset=base + number) for number, each in enumerate(batch)]
