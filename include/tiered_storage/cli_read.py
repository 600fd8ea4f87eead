"""The commands that look: segments, read, audit."""

from __future__ import annotations

import base64
import json
import sys
from itertools import islice
from typing import Annotated

import typer

from tiered_storage.cli_output import Output, show_bytes
from tiered_storage.cli_progress import said
from tiered_storage.cli_session import (
    ConfigOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    opened,
    selected,
)
from tiered_storage.kafka_log.record import Record
from tiered_storage.remote_log.task_progress import untold


def segments(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the remote segments, in every state but the deleted ones."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = selected(topics, partitions)
        rows = [
            (
                str(partition),
                segment.start_offset,
                segment.end_offset,
                segment.size,
                segment.max_timestamp,
                segment.state.name,
                segment.segment_id.id,
            )
            for partition in remote_log.segments.list_partitions()
            if selection.matches(partition.topic, partition.partition)
            for segment in remote_log.segments.list_remote_log_segments(partition)
        ]
    columns = ("partition", "start offset", "end offset", "bytes", "max timestamp", "state", "segment id")
    output.rows("Remote segments", columns, rows)


def read(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Begin here; else at the log start.")] = None,
    max_records: Annotated[int, typer.Option("--max-records", min=1, help="Stop after so many.")] = 10,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read records, from whichever tier has them. With --json: one object a line; keys and values in base64."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        found = remote_log.find_partition(topic, partition)
        reader = remote_log.reader
        start = reader.log_start_offset(found) if offset is None else offset
        records = islice(reader.records(found, start), max_records)
        if as_json:
            for record in records:
                sys.stdout.write(json.dumps(_plain(record)) + "\n")
            return
        rows = [
            (record.offset, record.timestamp, show_bytes(record.key), show_bytes(record.value), len(record.headers))
            for record in records
        ]
    output.rows(f"{topic}-{partition}", ("offset", "timestamp", "key", "value", "headers"), rows)


def audit(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte back and check every checksum.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold the store against the metadata; exit code 1 for any anomaly, or where nothing matches. Changes nothing."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = selected(topics, partitions)
        told = said("read", remote_log.checks.to_read(selection), output) if deep else untold
        report = remote_log.checks.audit(selection, deep=deep, on_moved=told)
    title = (
        f"{report.segments:,} segments, {report.objects:,} objects, {report.size:,} bytes: "
        f"{report.anomaly_count} anomalies{f', {report.unread} segments or documents unread' if report.unread else ''}"
    )
    rows = [(anomaly.kind.value, anomaly.what, anomaly.message) for anomaly in report.anomalies]
    output.rows(
        title, ("kind", "what", "message"), rows,
        segments=report.segments, objects=report.objects, bytes=report.size, notices=list(report.notices),
    )  # fmt: skip
    for notice in report.notices:
        output.say(f"note: {notice}")
    if report.anomalies:
        depth = " --deep" if deep else ""
        output.say(f"note: 'tiered-storage repair{depth} --dry-run' shows what can be mended")
    if report.anomalies or report.unread:
        raise typer.Exit(1)


def _plain(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [[key, _base64(value)] for key, value in record.headers],
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
