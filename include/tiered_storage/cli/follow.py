"""The commands of followers: follow, and move-partition, which takes a partition to another log directory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.session import ConfigOption, JsonOption, opened
from tiered_storage.clock import wall_clock
from tiered_storage.errors import UnknownPartitionError
from tiered_storage.remote_log.follower.follower import Follower, FollowReport
from tiered_storage.remote_log.follower.follower import follow as follow_leader
from tiered_storage.remote_log.follower.moving import move_partition as move_files
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.opening import local_place
from tiered_storage.remote_log.source.partition_log import NamedPartition

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]
PartitionArgument = Annotated[int, typer.Argument(min=0, help="The partition's number.")]

_COLUMNS = (
    "partition",
    "log start",
    "local start",
    "end offset",
    "fetched bytes",
    "truncations",
    "indexed segments",
    "deleted segments",
)


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
    output = Output(as_json)
    with opened(config, output) as remote_log, _until_signal() as ended:
        found = _followed_partition(remote_log, topic, partition)
        with Follower.open(remote_log.context, found, directory, node_id=node_id) as follower:
            report = follow_leader(
                follower,
                stays=stay,
                is_wanted=lambda: not ended.is_set(),
                clock=wall_clock,
                on_error=lambda error: output.say(f"note: {error}"),
            )
    _show(report, directory, output)


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


def _show(report: FollowReport, directory: Path, output: Output) -> None:
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
    output.rows(f"Followed into {directory}: {show_size(report.fetched_bytes)} fetched", _COLUMNS, [row])
    output.findings("note", report.findings)
    if report.findings:
        raise typer.Exit(1)
