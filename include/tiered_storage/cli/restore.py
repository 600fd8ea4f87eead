"""Commands that bring back what was lost: restore from the store, follow a leader; and move-partition."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.session import ConfigOption, DryRunOption, JsonOption, PartitionsOption, opened
from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError, TieredStorageError, UnknownPartitionError
from tiered_storage.kafka_wire.connections.client_properties import read_client_properties
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.progress import TaskProgress
from tiered_storage.remote_log.restore.directory import DirectoryTarget
from tiered_storage.remote_log.restore.request import RestorePlan, RestoreRequest, parse_time
from tiered_storage.remote_log.restore.validation import Validation
from tiered_storage.remote_log.selection import parse_partitions
from tiered_storage.remote_log.source.opening import local_place
from tiered_storage.remote_log.source.partition_log import NamedPartition

if TYPE_CHECKING:
    from tiered_storage.remote_log.follower.follower import FollowReport
    from tiered_storage.remote_log.restore.cluster import ClusterTarget

_REPORT_SECONDS = 5
_PAUSE_SECONDS = 5.0
"""Between an error and the next attempt of a follower that stays."""
_PLAN_COLUMNS = ("partition", "start offset", "end offset", "segments", "bytes")
_DIRECTORY_COLUMNS = (*_PLAN_COLUMNS, "records", "was there")
_CLUSTER_COLUMNS = ("partition", "start offset", "end offset", "sent", "found")

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
PartitionArgument = Annotated[int, typer.Argument(min=0, help="The partition's number.")]

_FOLLOW_COLUMNS = (
    "partition",
    "log start",
    "local start",
    "end offset",
    "fetched bytes",
    "truncations",
    "indexed segments",
    "deleted segments",
)


class Compressor(StrEnum):
    """The codecs for records that are restored into a cluster."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def restore(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    to_directory: Annotated[
        Path | None,
        typer.Option(
            "--to-directory",
            help="The log directory of a stopped broker, or a new one. A relative path begins in the current folder "
            "(in the setting restore.directory: see docs/configuration.md).",
        ),
    ] = None,
    to_cluster: Annotated[
        str | None, typer.Option("--to-cluster", help="host:port of a running cluster: produce the records there.")
    ] = None,
    partitions: PartitionsOption = None,
    from_offset: Annotated[int | None, typer.Option("--from-offset", min=0, help="Begin at this offset.")] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="End before this offset.")] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", help="Begin with records of this time: ISO 8601, or ms.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", help="End before records of this time: ISO 8601, or ms.")
    ] = None,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", help="Which incarnation of the topic, if there are several.")
    ] = None,
    as_topic: Annotated[str | None, typer.Option("--as-topic", help="Restore it under this name.")] = None,
    as_topic_id: Annotated[
        str | None,
        typer.Option("--as-topic-id", help="The topic's id in the directory's cluster; default: the id found there."),
    ] = None,
    node_id: Annotated[
        int, typer.Option("--node-id", min=0, help="The node.id for a directory that no broker has used yet.")
    ] = 1,
    append: Annotated[
        bool, typer.Option("--append", help="Append after the records that the cluster's topic already holds.")
    ] = False,
    offset_map: Annotated[
        Path, typer.Option("--offset-map", help="The file of old and new offsets; another run resumes from it.")
    ] = Path("offset-map.jsonl"),
    client_properties: Annotated[
        Path | None,
        typer.Option("--client-properties", help="A file of librdkafka's name=value lines, such as logins."),
    ] = None,
    compression: Annotated[
        Compressor, typer.Option("--compression", help="The codec for the produced records.")
    ] = Compressor.LZ4,
    allow_gaps: Annotated[
        bool,
        typer.Option("--allow-gaps", help="Restore the available records even if offsets between them are missing."),
    ] = False,
    validation: Annotated[
        Validation, typer.Option("--validation", help="How much to check besides every segment's checksum.")
    ] = Validation.SIZES,
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many partitions to restore at once.")] = 2,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a topic, or part of it, from the store: into a broker's log directory, or into a running cluster."""
    output = Output(as_json)
    request = RestoreRequest(
        topic,
        topic_id,
        parse_partitions(partitions),
        from_offset,
        to_offset,
        parse_time("--from-time", from_time),
        parse_time("--to-time", to_time),
    )
    if (to_directory is None) == (to_cluster is None) and not dry_run:
        raise ConfigurationError(
            "give a target: --to-directory DIRECTORY or --to-cluster HOST:PORT; or --dry-run for the plan"
        )
    request.named_as(as_topic)
    # A dry run needs no directory, but refuses the same ids.
    directory = DirectoryTarget(to_directory or Path(), as_topic, as_topic_id, node_id)
    with opened(config, output) as remote_log:
        plan = remote_log.restores.plan(request)
        if dry_run:
            _show_plan(plan, output, allow_gaps=allow_gaps)
            return
        output.findings("note", plan.notices)
        if to_directory is not None:
            _to_directory(remote_log, plan, directory, output, validation, allow_gaps, workers)
        if to_cluster is not None:
            from tiered_storage.remote_log.restore.cluster import ClusterTarget

            properties = read_client_properties(client_properties) if client_properties else {}
            cluster = ClusterTarget(to_cluster, offset_map, as_topic, properties, compression.value, append)
            _to_cluster(remote_log, plan, cluster, output, validation, allow_gaps)


def _to_directory(
    remote_log: RemoteLogManager,
    plan: RestorePlan,
    target: DirectoryTarget,
    output: Output,
    validation: Validation,
    allow_gaps: bool,
    workers: int,
) -> None:
    done = remote_log.restores.to_directory(
        plan,
        target,
        validation=validation,
        allow_gaps=allow_gaps,
        workers=workers,
        on_moved=TaskProgress("restored", plan.amount, output.say, every_seconds=_REPORT_SECONDS),
    )
    rows = [
        (each.partition, each.log_start_offset, each.log_end_offset - 1, each.segments, each.size, each.records,
         each.was_there)
        for each in done
    ]  # fmt: skip
    output.rows(
        f"Restored into {target.root}", _DIRECTORY_COLUMNS, rows,
        gaps=plan.gaps, notices=plan.notices,
    )  # fmt: skip
    output.findings("gap", plan.gaps)


def _to_cluster(
    remote_log: RemoteLogManager,
    plan: RestorePlan,
    target: ClusterTarget,
    output: Output,
    validation: Validation,
    allow_gaps: bool,
) -> None:
    report = remote_log.restores.to_cluster(
        plan,
        target,
        validation=validation,
        allow_gaps=allow_gaps,
        on_moved=TaskProgress("restored", plan.amount, output.say, every_seconds=_REPORT_SECONDS),
    )
    rows = [
        (each.partition, each.first_offset, each.end_offset - 1, each.sent, each.found) for each in report.partitions
    ]
    output.rows(
        f"Restored into {target.bootstrap_servers}; offsets are in {target.map_path}", _CLUSTER_COLUMNS, rows,
        gaps=plan.gaps,
        notices=[*plan.notices, *({"message": each} for each in report.notices)],
    )  # fmt: skip
    for notice in report.notices:
        output.say(f"note: {notice}")
    output.findings("gap", plan.gaps)


def _show_plan(plan: RestorePlan, output: Output, *, allow_gaps: bool) -> None:
    rows = [
        (str(each.topic_id_partition), each.log_start_offset, each.log_end_offset - 1, len(each.segments), each.size)
        for each in plan.partitions
    ]
    output.rows(
        f"To restore: {sum(row[3] for row in rows):,} segments, {show_size(plan.size)}", _PLAN_COLUMNS, rows,
        topic_id=plan.topic_id,
        gaps=plan.gaps,
        refused=plan.refused,
        notices=plan.notices,
    )  # fmt: skip
    output.findings("note", plan.notices)
    output.findings("refused", plan.refused)
    output.findings("gap", plan.gaps)
    if plan.refused or (plan.gaps and not allow_gaps):
        raise typer.Exit(1)


def follow(
    topic: TopicArgument,
    partition: PartitionArgument,
    directory: Annotated[
        Path,
        typer.Option(
            "--directory", help="The log directory to follow into: a new one, or of a broker that is stopped."
        ),
    ],
    stay: Annotated[bool, typer.Option("--stay", help="Go on when it has caught up, until SIGTERM or Ctrl-C.")] = False,
    node_id: Annotated[
        int, typer.Option("--node-id", min=0, help="The node.id for a directory that no broker has used yet.")
    ] = 1,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a partition of the running cluster into a log directory, from where the remote log lets it start.

    The directory gets the leader's batches, its leader epochs and producers, and the remote log index. It ends when it
    has caught up; another run continues. A broker, or copies (log.dirs), may take the directory over then.
    """
    from tiered_storage.remote_log.follower.follower import Follower
    from tiered_storage.remote_log.follower.follower import follow as follow_leader

    output = Output(as_json)

    def report_and_wait(error: TieredStorageError) -> None:
        output.say(f"note: {error}")
        ended.wait(_PAUSE_SECONDS)

    with opened(config, output) as remote_log, _until_signal() as ended:
        found = _followed_partition(remote_log, topic, partition)
        with Follower.open(remote_log.context, found, directory, node_id=node_id) as follower:
            report = follow_leader(
                follower,
                stays=stay,
                is_wanted=lambda: not ended.is_set(),
                clock=wall_clock,
                on_error=report_and_wait,
            )
    _show_followed(report, directory, output)


def move_partition(
    topic: TopicArgument,
    partition: PartitionArgument,
    source: Annotated[Path, typer.Option("--from", help="The log directory that has the partition.")],
    target: Annotated[
        Path, typer.Option("--to", help="The log directory to move it to: a new one, or of the same broker.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Move a partition to another log directory, with its remote log index. Nobody may run in either of them."""
    from tiered_storage.remote_log.follower.moving import move_partition as move_files

    output = Output(as_json)
    moved = move_files(topic, partition, source, target)
    columns = ("partition", "files", "bytes", "was there")
    output.rows(f"Moved into {target}", columns, [(moved.partition, moved.files, moved.size, moved.was_there)])


def _followed_partition(remote_log: RemoteLogManager, topic: str, number: int) -> TopicIdPartition:
    """Return the partition that the source has. Raises UnknownPartitionError: one without a leader has no follower."""
    for found in remote_log.context.source.named(topic, number):
        if isinstance(found, NamedPartition):
            return found.topic_id_partition
    raise UnknownPartitionError(
        f"{topic}-{number} is not in {local_place(remote_log.context.settings)}: 'tiered-storage topics list' shows "
        "the known topics; 'tiered-storage restore' brings back one that only the store has"
    )


@contextmanager
def _until_signal() -> Iterator[Event]:
    """Let SIGTERM and Ctrl-C set an event during a `with` block, so that a log is closed in order."""
    ended = Event()
    earlier = {each: signal.signal(each, lambda *_: ended.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)


def _show_followed(report: FollowReport, directory: Path, output: Output) -> None:
    for start in report.starts:
        how = "" if start.rebuilt_from is None else f"; its producers follow from batches since {start.rebuilt_from}"
        output.say(f"note: {report.partition}: the local log starts at offset {start.offset}{how}")
    row = (
        report.partition,
        report.log_start_offset,
        report.local_start_offset,
        report.log_end_offset,
        report.fetched_bytes,
        report.truncations,
        report.indexed,
        report.deleted,
    )
    output.rows(f"Followed into {directory}: {show_size(report.fetched_bytes)} fetched", _FOLLOW_COLUMNS, [row])
    output.findings("note", report.findings)
    if report.findings:
        raise typer.Exit(1)
