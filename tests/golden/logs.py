"""Logs that a real broker wrote, with what its clients and its own tool saw in them: written once, read by tests.

log-dir/                  the broker's directory after a clean stop, without its internal topics
consumed.json             by partition: the records that a consumer got, and the offsets of a read_committed one
DumpLogSegments.txt       what Kafka's tool says of each file that it knows, down to the records
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden.aiokafka_clients import consume_all
from golden.topics import (
    BROKER_PROPERTIES,
    LOG_STARTS,
    PARTITIONS,
    UNREAD_BY_LIBRDKAFKA,
    write_golden_topics,
)
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.kafka_clients import RealKafkaClient
from tiered_storage.kafka_log.dump.file_kind import FileKind, KafkaFile, recognize
from tiered_storage.kafka_log.records.record import Record

KNOWN_TO_THE_TOOL = frozenset(
    {
        FileKind.LOG,
        FileKind.OFFSET_INDEX,
        FileKind.TIME_INDEX,
        FileKind.TRANSACTION_INDEX,
        FileKind.PRODUCER_SNAPSHOT,
    }
)
_INTERNAL = "__*"


@dataclass(frozen=True, slots=True)
class Consumed:
    """What consumers got of a partition: all its records, and the offsets that a read_committed one saw."""

    records: list[Record]
    committed: list[int]


@dataclass(frozen=True, slots=True)
class GoldenLogs:
    """The golden logs in the directory `root`."""

    root: Path

    @property
    def log_dir(self) -> Path:
        return self.root / "log-dir"

    def partition(self, topic: str, partition: int = 0) -> Path:
        return self.log_dir / f"{topic}-{partition}"

    def files(self) -> Iterator[KafkaFile]:
        """Yield each file of Kafka's, of all partitions and of the log directory itself."""
        for path in sorted(self.log_dir.rglob("*")):
            if path.is_file() and (file := recognize(path)) is not None:
                yield file

    def consumed(self) -> dict[str, Consumed]:
        """Return what consumers got, by the name of the partition's directory."""
        content = json.loads((self.root / "consumed.json").read_text())
        return {
            name: Consumed([_record(fields) for fields in one["records"]], one["committed"])
            for name, one in content.items()
        }

    def dumped(self) -> dict[Path, str]:
        """Return the output of DumpLogSegments, by the path of the file."""
        content = (self.root / "DumpLogSegments.txt").read_bytes().decode()
        return {self.log_dir / path: text for path, text in split_dump(content).items()}


def make_golden_logs(programs: KafkaPrograms, root: Path, work: Path, scale: int = 1) -> GoldenLogs:
    """Let a real broker write golden logs into `root`, in place of the present ones.

    The broker works in the directory `work`; `scale` multiplies the records.
    """
    logs = GoldenLogs(root)
    shutil.rmtree(logs.log_dir, ignore_errors=True)
    with RealKafka(programs, work, properties=BROKER_PROPERTIES) as kafka:
        write_golden_topics(kafka, scale)
        consumed = {f"{topic}-{number}": _consume(kafka.client, topic, number) for topic, number in PARTITIONS}
    shutil.copytree(kafka.log_dir, logs.log_dir, ignore=shutil.ignore_patterns(_INTERNAL, ".lock"))
    save_seen(programs, logs, consumed)
    return logs


def save_seen(programs: KafkaPrograms, logs: GoldenLogs, consumed: Mapping[str, Consumed]) -> None:
    """Write what consumers got, by the partition's name, and what Kafka's tool says of the files, beside the logs."""
    lines = (f"{json.dumps(name)}: {_as_json(found)}" for name, found in consumed.items())
    (logs.root / "consumed.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (logs.root / "DumpLogSegments.txt").write_bytes(_dump(programs, logs).encode())


def split_dump(content: str) -> dict[str, str]:
    """Return what DumpLogSegments wrote, by the file that it wrote it of."""
    _, *parts = re.split(r"^Dumping (.*)\n", content, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _consume(client: RealKafkaClient, topic: str, number: int) -> Consumed:
    if (topic, number) in UNREAD_BY_LIBRDKAFKA:
        records = consume_all(client.bootstrap_servers, topic, number)
        return Consumed(records, [record.offset for record in records])
    start = LOG_STARTS.get(topic, 0)
    committed = client.consume_all(topic, number, start=start, isolation="read_committed")
    return Consumed(client.consume_all(topic, number, start=start), [record.offset for record in committed])


def _dump(programs: KafkaPrograms, logs: GoldenLogs) -> str:
    paths = [file.path for file in logs.files() if file.kind in KNOWN_TO_THE_TOOL]
    names = ",".join(map(str, paths))
    options = ("--deep-iteration", "--print-data-log", "--files", names)
    return programs.tool("org.apache.kafka.tools.DumpLogSegments", *options).replace(f"{logs.log_dir}/", "")


def _as_json(found: Consumed) -> str:
    records = ",\n".join(json.dumps(_fields(record), ensure_ascii=False) for record in found.records)
    return f'{{"committed": {json.dumps(found.committed)}, "records": [\n{records}]}}'


def _fields(record: Record) -> list[Any]:
    headers = [[key, _encoded(value)] for key, value in record.headers]
    return [record.offset, record.timestamp, _encoded(record.key), _encoded(record.value), headers]


def _record(fields: list[Any]) -> Record:
    offset, timestamp, key, value, headers = fields
    return Record(offset, timestamp, _decoded(key), _decoded(value), tuple((k, _decoded(v)) for k, v in headers))


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
