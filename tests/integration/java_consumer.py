"""Kafka's own consumer, in Java."""

from __future__ import annotations

from collections.abc import Iterable

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.kafka_clients import Isolation
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.record import Headers, Record

_TIMES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}
_SHOWN = ("print.timestamp", "print.partition", "print.offset", "print.headers", "print.key")
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"
_AS_IT_IS = range(ord(" "), ord("~") + 1)


def consume_with_java(
    kafka: RealKafka | KafkaPrograms,
    topic: str,
    partition: int | None = None,
    isolation: Isolation = "read_uncommitted",
    *,
    most: int,
    timeout_ms: int = 30_000,
    bootstrap_servers: str = "",
    properties: Iterable[str] = (),
) -> list[str]:
    """Return a line a record, of one partition or of all, until there are `most` or none comes for so long (ms).

    It asks the broker itself, unless `bootstrap_servers` are others. `properties` are more of the consumer's.
    """
    servers = bootstrap_servers or (kafka.bootstrap_servers if isinstance(kafka, RealKafka) else "")
    which = ("--from-beginning",) if partition is None else ("--partition", str(partition), "--offset", "earliest")
    shown = [*(f"{name}=true" for name in _SHOWN), "headers.deserializer=" + _BYTES]
    out = kafka.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, "--topic", topic, *which),
        *("--isolation-level", isolation, "--timeout-ms", str(timeout_ms), "--max-messages", str(most)),
        *(argument for each in properties for argument in ("--command-property", each)),
        *(argument for each in shown for argument in ("--formatter-property", each)),
    )
    return out.splitlines()


def java_lines(
    records: Iterable[Record], partition: int, timestamp_type: TimestampType = TimestampType.CREATE_TIME
) -> list[str]:
    """Return the lines that `records` of a partition come to; keys and values are text without tabs or line ends."""
    return [
        "\t".join(
            (
                f"{_TIMES[timestamp_type]}:{record.timestamp}",
                f"Partition:{partition}",
                f"Offset:{record.offset}",
                _header_text(record.headers),
                _text(record.key),
                _text(record.value),
            )
        )
        for record in records
    ]


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode()


def _header_text(headers: Headers) -> str:
    shown = [f"{key}:{'null' if value is None else _escaped(value)}" for key, value in headers]
    return ",".join(shown) or "NO_HEADERS"


def _escaped(content: bytes) -> str:
    """As Kafka's Bytes shows itself."""
    return "".join(chr(byte) if byte in _AS_IT_IS and byte != ord("\\") else f"\\x{byte:02X}" for byte in content)
