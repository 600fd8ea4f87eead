"""The commands that copy segments: plan and copy, once, service, continuously, and adopt, from Kafka's own tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.plans import copy_rows
from tiered_storage.cli.common.progress import PROGRESS_SHOWN_SECONDS, leave_at_once, watched
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    LimitOption,
    PartitionsOption,
    TopicsOption,
    chosen_topics,
    known_selection,
    lease_owner,
    named_partitions,
    opened,
    past_retention_documents,
    refused_by_decision,
    selected,
    show_past_retention,
)
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata
from tiered_storage.remote_log.selection import parse_partitions
from tiered_storage.remote_log.tiering_policy import effective

if TYPE_CHECKING:
    from tiered_storage.remote_log.adopt.adoption import Adoption
    from tiered_storage.remote_log.copy.start import BegunCopy
    from tiered_storage.remote_log.retention.past_retention import PastRetention
    from tiered_storage.remote_log.selection import Selection
    from tiered_storage.settings.settings import Settings

WorkersOption = Annotated[int, typer.Option("--workers", min=1, help="How many groups of partitions to copy at once.")]

BrokerOption = Annotated[
    int | None,
    typer.Option(
        "--broker",
        min=0,
        help="The id of the broker that this service runs beside: the service takes only the partitions that this "
        "broker leads. Default: all partitions.",
        show_default=False,
    ),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="With --broker: a log directory, into which the service follows the partitions that this broker has and "
        "does not lead. It must be new, or one that no broker runs in.",
        show_default=False,
    ),
]

_FEW_TOPICS = 10
_ADOPTED_COLUMNS = ("partition", "start offset", "end offset", "bytes")


def plan(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    max_segments: LimitOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which closed segments a copy would copy, and which it leaves out and why. Changes nothing."""
    output = Output(as_json)
    with opened(config, output, only_looks=True) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        due = remote_log.plan_copy(selection, max_segments=max_segments)
        chosen = [one for one in named_partitions(remote_log.context) if selection.matches(one.topic, one.partition)]
        enabled = [one for one in chosen if remote_log.context.decided_topic(one).remote_storage_enable]
        _show_plan(due, _left_out(remote_log, selection), output, remote_log.deletions.past_retention(enabled))


def copy(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    max_segments: LimitOption = None,
    workers: WorkersOption = 2,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy closed segments to the remote tier and commit their metadata, in this process."""
    output = Output(as_json)
    with opened(config, output, create=not dry_run, only_looks=dry_run) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        due = remote_log.plan_copy(selection, max_segments=max_segments)
        if dry_run:
            _show_plan(due, _left_out(remote_log, selection), output)
            return
        refused = refused_by_decision(
            remote_log.context, selection, partial(_why_not_copied, remote_log.context.settings)
        )
        begun = remote_log.begin_copy(due, lease_owner("copy"))
        report, has_hung = copy_here(remote_log, begun, workers, output)
    rows = [
        (str(segment.topic_id_partition), segment.start_offset, segment.end_offset, segment.size)
        for segment in report.committed
    ]
    troubles = (*refused, *due.troubles, *begun.left, *report.failures, *report.damages)
    moved = sum(segment.size for segment in report.committed)
    title = f"Copied: {len(rows):,} segments, {show_size(moved)}"
    notices = (*due.notices, *report.notices)
    output.rows(
        title, ("partition", "start offset", "end offset", "bytes"), rows,
        troubles=troubles, notices=notices,
    )  # fmt: skip
    output.findings("note", notices)
    if has_hung:
        output.findings("error", troubles)
        leave_at_once(1)
    output.end(troubles)


def service(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    broker: BrokerOption = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy and expire continuously, in a process that stays up, without Airflow and Spark.

    Each partition's turn comes every remote.log.manager.task.interval.ms. The service deletes only what the DAGs'
    scheduled runs would delete (scheduled.deletion.enable). It runs until SIGTERM or Ctrl-C, then finishes what it
    copies, and ends.
    """
    from tiered_storage.cli.common import service_process

    output, stop = Output(as_json=False), service_process.stopped_by_signal()
    with opened(config, output, create=True) as remote_log:
        options = service_process.ServiceOptions(selected(topics, partitions), broker, directory)
        has_ended = service_process.serve_partitions(remote_log, options, stop, output)
        if not has_ended:
            leave_at_once(0)
    output.say("the service ended")


def adopt(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    native: Annotated[
        Path,
        typer.Option(
            "--from",
            help="The settings file of the cluster that tiers by itself (docs/native-clusters.md). Settings in the "
            "environment do not count for it.",
        ),
    ],
    partitions: PartitionsOption = None,
    workers: WorkersOption = 2,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a topic's segments out of Kafka's own remote tier, byte for byte, under the topic's own id.

    Every batch's checksum is compared. Nothing is changed in Kafka's tier. If a run is interrupted, the next one copies
    what is still lacking.
    """
    from tiered_storage.remote_log.adopt.adoption import Adoption

    output = Output(as_json)
    with (
        opened(config, output, create=not dry_run, only_looks=dry_run) as remote_log,
        opened(native, output, only_looks=True, environ={}) as kafkas,
        Adoption.opened(remote_log.context, kafkas.context) as adoption,
    ):
        due = adoption.plan(topic, parse_partitions(partitions))
        if dry_run:
            output.rows(
                f"To adopt: {len(due.segments):,} segments, {show_size(due.size)}",
                (*_ADOPTED_COLUMNS, "file"), copy_rows(due),
                refused=due.refused, notices=due.notices,
            )  # fmt: skip
            output.findings("note", due.notices)
            output.end(due.refused)
            return
        _adopt(adoption, due, workers, output)


def _adopt(adoption: Adoption, due: CopyPlan, workers: int, output: Output) -> None:
    committed: list[RemoteLogSegmentMetadata] = []
    troubles, notices = [*due.refused], [*due.notices]
    stopped: set[str] = set()
    has_hung = False
    for part in adoption.rounds(due, stopped):
        begun = adoption.remote_log.begin_copy(part, lease_owner("adopt"))
        report, has_hung = copy_here(adoption.remote_log, begun, workers, output)
        committed += report.committed
        failed: list[Finding] = [*begun.left, *report.failures]
        stopped |= {each.partition for each in failed}
        troubles += [*failed, *report.damages]
        notices += report.notices
        if has_hung:
            break
    rows = [(str(each.topic_id_partition), each.start_offset, each.end_offset, each.size) for each in committed]
    title = f"Adopted: {len(rows):,} segments, {show_size(sum(each.size for each in committed))}"
    output.rows(title, _ADOPTED_COLUMNS, rows, troubles=troubles, notices=notices)
    output.findings("note", notices)
    if has_hung:
        output.findings("error", troubles)
        leave_at_once(1)
    output.end(troubles)


def _why_not_copied(settings: Settings, topic: Topic) -> str | None:
    """Return why nothing of `topic` is copied; None if it is copied or has invalid settings (the plan reports it)."""
    if not topic.remote_storage_enable:
        return f"topic {topic.name} is not enabled: 'tiered-storage topics enable {topic.name}'"
    if _is_paused(topic, settings):
        return f"topic {topic.name} is paused: 'tiered-storage topics resume {topic.name}'"
    return None


def _is_paused(topic: Topic, settings: Settings) -> bool:
    if not topic.remote_storage_enable:
        return False
    try:
        return effective(topic, settings).remote_log_copy_disable
    except ConfigurationError:
        return False


def copy_here(
    remote_log: RemoteLogManager, begun: BegunCopy, workers: int, output: Output
) -> tuple[CommitReport, bool]:
    """Copy and commit in this process, and release the leases; also return whether copies hung.

    The report's failures include what could not be begun. Threads of hung copies still run: end the process with
    leave_at_once then.
    """
    from tiered_storage.remote_log.service.copying import copy_in_threads

    stuck_after_ms = remote_log.context.settings.copy_stuck_after_ms
    return copy_in_threads(
        remote_log,
        begun,
        f"runs/command-line/{random_uuid()}",
        workers,
        lambda files, size, give_up: watched(files, size, stuck_after_ms, give_up, output),
        progress_seconds=PROGRESS_SHOWN_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """The names of the selected topics of which nothing is copied."""

    not_enabled: Sequence[str]
    paused: Sequence[str]


def _left_out(remote_log: RemoteLogManager, selection: Selection) -> _LeftOut:
    chosen = chosen_topics(remote_log.context, selection)
    disabled = dict.fromkeys(topic.name for topic in chosen if not topic.remote_storage_enable)
    paused = dict.fromkeys(topic.name for topic in chosen if _is_paused(topic, remote_log.context.settings))
    return _LeftOut(list(disabled), list(paused))


def _show_plan(due: CopyPlan, left_out: _LeftOut, output: Output, past: Sequence[PastRetention] = ()) -> None:
    rows = copy_rows(due)
    output.rows(
        f"Due: {len(due.segments):,} segments, {show_size(due.size)}",
        ("partition", "start offset", "end offset", "bytes", "file"),
        rows,
        refused=due.refused,
        unreadable=due.unreadable,
        alarms=due.alarms,
        notices=due.notices,
        not_enabled=left_out.not_enabled,
        paused=left_out.paused,
        past_retention=past_retention_documents(past),
    )
    output.findings("note", due.notices)
    show_past_retention(past, output)
    for why, command, names in (
        ("not enabled", "enable", left_out.not_enabled),
        ("paused", "resume", left_out.paused),
    ):
        if names:
            more = f" and {len(names) - _FEW_TOPICS} more" if len(names) > _FEW_TOPICS else ""
            shown = ", ".join(names[:_FEW_TOPICS])
            output.say(f"note: left out, since {why} ('tiered-storage topics {command} TOPIC'): {shown}{more}")
    output.findings("refused", due.refused)
    output.findings("unreadable", due.unreadable)
    output.findings("alarm", due.alarms)
    if due.troubles:
        raise typer.Exit(1)
