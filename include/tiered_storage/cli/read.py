"""The commands that read: segments, read, offsets, audit, and gateway, which reads for Kafka clients."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, StreamedTable, show_bytes, show_size
from tiered_storage.cli.common.progress import OffsetProgress, said
from tiered_storage.cli.common.session import (
    ConfigOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    known_selection,
    opened,
    selected,
)
from tiered_storage.clock import as_date
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.progress import unreported
from tiered_storage.remote_log.restore.request import parse_time
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.settings.settings import load_settings

if TYPE_CHECKING:
    from tiered_storage.kafka_log.records.record import Record
    from tiered_storage.remote_log.audit.report import AuditReport
    from tiered_storage.remote_log.model import TopicIdPartition
    from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
    from tiered_storage.remote_log.read.read_values import FetchedBatches, FoundOffset, Isolation, OffsetSpec

_FEW_RECORDS = 10
_TIME = "not earlier: 2026-11-21T20:00:00+00:00, or ms; without a UTC offset, UTC."


class ReadIsolation(StrEnum):
    """The isolation levels of Kafka's consumers."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> Isolation:
        from tiered_storage.remote_log.read.read_values import Isolation

        return Isolation(self.value)


IsolationOption = Annotated[
    ReadIsolation,
    typer.Option("--isolation", help="read_committed omits records of aborted and of open transactions."),
]


def segments(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the remote segments in every state except deleted."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        rows = [
            (
                str(partition),
                segment.start_offset,
                segment.end_offset,
                segment.known_size,
                segment.max_timestamp,
                segment.state.name,
                segment.segment_id.id,
            )
            for partition in remote_log.context.segments.list_partitions()
            if selection.matches(partition.topic, partition.partition)
            for segment in remote_log.context.segments.list_remote_log_segments(partition)
        ]
    columns = ("partition", "start offset", "end offset", "bytes", "max timestamp", "state", "segment id")
    output.rows("Remote segments", columns, rows)


def read(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Begin here; default: the log start.")] = None,
    begin_time: Annotated[
        str | None, typer.Option("--time", help=f"Begin with the first record that is {_TIME}")
    ] = None,
    end_offset: Annotated[int | None, typer.Option("--end-offset", min=0, help="End before this offset.")] = None,
    isolation: IsolationOption = ReadIsolation.READ_UNCOMMITTED,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            min=1,
            max=sys.maxsize,
            help="Stop after this many; default: 10, or no limit with --end-offset.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read records from both tiers. With --json: one object a line; keys and values in base64."""
    from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader

    output = Output(as_json)
    if offset is not None and begin_time is not None:
        raise ConfigurationError("--offset and --time both set the start: give only one of them")
    moment = parse_time("--time", begin_time)
    most = max_records if max_records is not None or end_offset is not None else _FEW_RECORDS
    with opened(config, output) as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        found = remote_log.find_partition(topic, partition, names_near=True)
        start = _start_of(reader, found, offset, moment, isolation.level)
        batches = reader.batches(found, start, end_offset=end_offset, isolation=isolation.level)
        progress = OffsetProgress("read", start, _end_of(reader, found, end_offset, isolation.level), output)
        records = islice(_records(batches, progress), most)
        if as_json:
            for record in records:
                sys.stdout.write(json.dumps(_plain(record)) + "\n")
            return
        table = StreamedTable(("offset", "timestamp", "key", "value", "headers"))
        sys.stdout.write(f"{topic}-{partition}\n\n")
        for record in records:
            key, value = show_bytes(record.key), show_bytes(record.value)
            table.add((record.offset, as_date(record.timestamp), key, value, len(record.headers)))
        table.finish()


def offsets(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    times: Annotated[
        list[str] | None, typer.Option("--time", help=f"Also the first record that is {_TIME} May be repeated.")
    ] = None,
    isolation: IsolationOption = ReadIsolation.READ_UNCOMMITTED,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a partition's offsets over both tiers, by Kafka's names for them and by time."""
    from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
    from tiered_storage.remote_log.read.read_values import OffsetSpec

    output = Output(as_json)
    named = OffsetSpec.__members__.items()
    asked: list[tuple[str, OffsetSpec | int]] = [(name.lower().replace("_", "-"), spec) for name, spec in named]
    asked += [(text, parse_time("--time", text) or 0) for text in times or []]
    with opened(config, output) as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        found = remote_log.find_partition(topic, partition, names_near=True)
        rows = [(name, *_shown(reader.offsets(found, spec, isolation.level))) for name, spec in asked]
    output.rows(f"{topic}-{partition}", ("of", "offset", "timestamp", "leader epoch"), rows)


def audit(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read back every byte and check every checksum.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the store with the metadata; exit code 1 if there is an anomaly or nothing matches. Changes nothing."""
    output = Output(as_json)
    with opened(config, output, outdated=True) as remote_log:
        selection = selected(topics, partitions)
        on_moved = said("read", remote_log.checks.to_read(selection), output) if deep else unreported
        report = remote_log.checks.audit(selection, deep=deep, on_moved=on_moved)
        is_ours = as_listable(remote_log.context.storage) is not None
    title = (
        f"{report.segments:,} segments, {report.objects:,} objects, {show_size(report.size)}: "
        f"{report.anomaly_count} anomalies{f', {report.unread} segments or documents unread' if report.unread else ''}"
    )
    rows = [(anomaly.kind.value, anomaly.what, anomaly.message) for anomaly in report.anomalies]
    output.rows(
        title, ("kind", "what", "message"), rows,
        segments=report.segments, objects=report.objects, bytes=report.size, notices=list(report.notices),
    )  # fmt: skip
    show_notices(report, output)
    if report.anomalies and is_ours:
        depth = " --deep" if deep else ""
        output.say(f"note: 'tiered-storage repair{depth} --dry-run' shows what can be repaired")
    if report.anomalies or report.unread or report.unseen:
        raise typer.Exit(1)


def gateway(config: ConfigOption = None) -> None:
    """Serve Kafka clients: they read whole topics through it, remote and local records, by the brokers' own protocol,
    logins and rights.

    Without bootstrap.servers it serves log.dirs and the remote log, read-only. It runs until SIGTERM or Ctrl-C, then
    answers what clients have asked, and ends.
    """
    from tiered_storage.gateway.standalone.server import serve_standalone
    from tiered_storage.gateway.workers import run_gateway, serve_beside_brokers
    from tiered_storage.remote_log.source.opening import CLUSTER

    output = Output(as_json=False)
    settings = load_settings(config)
    for notice in settings.notices:
        output.say(f"note: {notice}")
    has_brokers = CLUSTER.is_named(settings)
    if has_brokers and settings.gateway_users_file is not None:
        raise ConfigurationError(
            "gateway.users.file and bootstrap.servers are both set: with brokers, clients log in at the brokers: take "
            "gateway.users.file out"
        )
    run_gateway(settings, serve_beside_brokers if has_brokers else serve_standalone, output.say)


def show_notices(report: AuditReport, output: Output) -> None:
    """Print what an audit could not check, and what else it noticed."""
    for notice in report.notices:
        output.say(f"{'error' if notice in report.unseen else 'note'}: {notice}")


def _start_of(
    reader: BlockingLogReader, partition: TopicIdPartition, offset: int | None, moment: int | None, level: Isolation
) -> int:
    """Return the start: `offset`, the first record from `moment` (ms) on, or the log start."""
    from tiered_storage.remote_log.read.read_values import OffsetSpec

    if offset is not None:
        return offset
    found = reader.offsets(partition, OffsetSpec.EARLIEST if moment is None else moment, level)
    return _end_of(reader, partition, None, level) if found is None else found.offset


def _end_of(reader: BlockingLogReader, partition: TopicIdPartition, end_offset: int | None, level: Isolation) -> int:
    from tiered_storage.remote_log.read.read_values import OffsetSpec

    found = reader.offsets(partition, OffsetSpec.LATEST, level)
    ends = [each for each in (end_offset, found.offset if found else None) if each is not None]
    return min(ends)


def _records(batches: Iterable[FetchedBatches], progress: OffsetProgress) -> Iterator[Record]:
    for fetched in batches:
        yield from fetched.records()
        progress(fetched.end_offset, len(fetched.content))


def _shown(found: FoundOffset | None) -> tuple[int | None, int | None, int | None]:
    """Return offset, timestamp and leader epoch; None for each that is missing."""
    if found is None:
        return None, None, None
    timestamp, epoch = (each if each >= 0 else None for each in (found.timestamp, found.leader_epoch))
    return found.offset, timestamp, epoch


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
