"""The commands that delete: what is past a retention (retain, expire), or what they are asked for, and undelete."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.plans import (
    PlanOption,
    SavePlanOption,
    ask_at_a_terminal,
    check_plan_options,
    made_or_read,
)
from tiered_storage.cli.common.progress import said
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    LimitOption,
    PartitionsOption,
    TopicsOption,
    known_selection,
    lease_owner,
    opened,
    refused_by_decision,
    show_grace,
    show_stop,
    source_notices,
)
from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.retention.due_segments import PendingDeletion
from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END
from tiered_storage.remote_log.selection import Selection, parse_partitions

if TYPE_CHECKING:
    from tiered_storage.remote_log.retention.expiry import ExpiryPlan
    from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan

TopicArgument = Annotated[str, typer.Argument(help="The topic's exact name.")]
PartitionArgument = Annotated[int, typer.Argument(help="The partition's number.", min=0)]
BeforeOption = Annotated[
    int, typer.Option("--before", help=f"The first offset to keep; {TO_THE_END}: the end of the stable records.")
]
TopicIdOption = Annotated[
    str | None,
    typer.Option("--topic-id", help="Which incarnation of the topic, if there are several.", show_default=False),
]

GiveUpOption = Annotated[
    bool, typer.Option("--give-up", help="Go on even if the store has lost objects of the partition: give them up.")
]

_WOULD_BE_REMOVED = "Would be removed locally"
_TRIM_COLUMNS = ("partition", "new local start", "segments", "bytes", "held back")
_EXPIRY_COLUMNS = ("partition", "new log start", "segments", "bytes", "never copied segments", "never copied bytes")

_WAITING_COLUMNS = ("partition", "segments", "bytes", "deleted after")
_WAITING_KEYS = tuple(column.replace(" ", "_") for column in _WAITING_COLUMNS)
_DUE_COLUMNS = ("partition", "segments", "left by copies", "bytes", "as a whole")

_RECORD_COLUMNS = ("partition", "new log start", "segments", "bytes")
_UNDELETED_COLUMNS = ("partition", "topic id", "log start", "segments", "bytes", "second copies")
_TOPIC_COLUMNS = ("partition", "topic id", "segments", "bytes", "state")


def retain(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    max_segments: LimitOption = None,
    dry_run: DryRunOption = False,
    save_plan_to: SavePlanOption = None,
    plan_file: PlanOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, at a terminal.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete local segments that are past local retention and safe in the remote tier, if deletion is allowed.

    In a running cluster the brokers delete these records (DeleteRecords), once every consumer group has read them.
    At a terminal, the command shows its plan and asks first.
    """
    from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan, amount_to_look_at

    chosen = topics != ".*" or partitions is not None or max_segments is not None
    check_plan_options(plan_file, save_plan_to, dry_run=dry_run, chosen=chosen)
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        plans, troubles = made_or_read(
            lambda: remote_log.deletions.plan_local_retention(selection, wall_clock(), max_segments=max_segments),
            LocalRetentionPlan,
            plan_file,
            save_plan_to,
        )
        seen = source_notices(remote_log.context)
        if dry_run:
            show_stop(remote_log, output)
        else:
            if not (yes or as_json or plan_file is not None):
                due = [plan for plan in plans if plan.segments]
                size = show_size(sum(plan.size for plan in due))
                ask_at_a_terminal(output, _WOULD_BE_REMOVED, _TRIM_COLUMNS, _trim_rows(due), f"Remove {size} locally?")
            report = remote_log.deletions.enforce_local_retention(
                plans, said("compared, in both tiers,", amount_to_look_at(plans), output)
            )
            trimmed = {plan.topic_id_partition: plan for plan in report.trimmed}
            plans = [
                trimmed.get(plan.topic_id_partition, plan)
                for plan in plans
                if plan.topic_id_partition in trimmed or not plan.segments
            ]
            refused = refused_by_decision(remote_log.context, selection, _why_not_trimmed) if plan_file is None else []
            troubles = [*troubles, *refused, *report.failures, *_stopped(report.stopped)]
    waiting = _held_back(plans, waits=True)
    troubles += _held_back(plans, waits=False)
    rows = _trim_rows(each for each in plans if each.segments or as_json)
    title = _WOULD_BE_REMOVED if dry_run else "Removed locally"
    notes = (Finding(str(each.topic_id_partition), note) for each in plans for note in each.notes)
    notices = [*seen, *waiting, *notes]
    output.rows(title, _TRIM_COLUMNS, rows, troubles=troubles, notices=notices)
    output.findings("note", notices)
    output.end(troubles)


def expire(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    max_segments: LimitOption = None,
    dry_run: DryRunOption = False,
    save_plan_to: SavePlanOption = None,
    plan_file: PlanOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what is past total retention, if deletion is allowed, and clean up after unfinished copies.

    A dry run does not compare the local log with the remote one. The run itself does, and deletes nothing of a forked
    log.
    """
    from tiered_storage.remote_log.retention.expiry import ExpiryPlan

    chosen = topics != ".*" or partitions is not None or max_segments is not None
    check_plan_options(plan_file, save_plan_to, dry_run=dry_run, chosen=chosen)
    output = Output(as_json)
    owner = lease_owner("expire")
    with opened(config, output) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        plans, troubles = made_or_read(
            lambda: remote_log.deletions.plan_expiry(selection, wall_clock(), max_segments),
            ExpiryPlan,
            plan_file,
            save_plan_to,
        )
        _refuse_record_deletions(plans, plan_file)
        deleted, seen = 0, source_notices(remote_log.context)
        if dry_run:
            show_stop(remote_log, output)
        else:
            done, left = remote_log.deletions.mark_expired(plans, owner)
            only = None if plan_file is None else {each.topic_id_partition for each in plans}
            on_moved = said("deleted", remote_log.deletions.marked(selection, only), output)
            report = remote_log.deletions.delete_marked(owner, selection, only, on_moved)
            plans = [plan for plan in plans if plan.topic_id_partition in done]
            refused = refused_by_decision(remote_log.context, selection, _why_not_expired) if plan_file is None else []
            troubles = [*troubles, *refused, *left, *report.left, *report.failures, *_stopped(report.stopped)]
            deleted = len(report.deleted)
        marked = remote_log.deletions.pending_deletions(selection)
        if plans:
            show_grace(remote_log.context, output)
    due = [one for one in marked if dry_run and (one.segments or one.leftovers or one.as_a_whole)]
    waiting = [one for one in marked if one.waiting]
    output.rows(
        "Would expire" if dry_run else "Expired", _EXPIRY_COLUMNS, _expiry_rows(plans),
        deleted=deleted, due=[_due_document(each) for each in due],
        waiting=[dict(zip(_WAITING_KEYS, _waiting_row(each), strict=True)) for each in waiting],
        troubles=troubles, notices=seen,
    )  # fmt: skip
    output.findings("note", seen)
    if due and not as_json:
        output.rows("Would be deleted too: marked before", _DUE_COLUMNS, [_due_row(each) for each in due])
    if waiting and not as_json:
        title = "Marked; the first run after this time deletes it; until then 'tiered-storage undelete' brings it back"
        output.rows(title, _WAITING_COLUMNS, [_waiting_row(each) for each in waiting])
    output.end(troubles)


def delete_records(
    topic: TopicArgument,
    partition: PartitionArgument,
    before: BeforeOption,
    give_up: GiveUpOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the records of a partition before an offset, if remote deletion is allowed.

    Readers of the remote log stop seeing them at once. The next run of expire deletes the segments that end before the
    offset, and the next run of retain those of a log directory. A running cluster's brokers keep their records: delete
    them with Kafka's own tool too.
    """
    output = Output(as_json)
    left: tuple[Finding, ...] = ()
    done: tuple[TopicIdPartition, ...] = ()
    with opened(config, output) as remote_log:
        found = remote_log.find_partition(topic, partition, names_near=True)
        planned = remote_log.deletions.plan_record_deletion(found, before)
        if dry_run:
            show_stop(remote_log, output)
        elif planned is not None:
            done, left = remote_log.deletions.mark_expired([planned], lease_owner("delete-records"), gives_up=give_up)
        if planned is not None and (dry_run or done):
            show_grace(remote_log.context, output, topic)
    rows = []
    if planned is not None and (dry_run or found in done):
        rows = [(str(found), planned.new_log_start, len(planned.segments), planned.size)]
    title = "Would be deleted" if dry_run else "Deleted; the next run of expire removes the segments"
    if not dry_run and not done:
        title = "Nothing was deleted"
    output.rows(title, _RECORD_COLUMNS, rows, troubles=left)
    output.end(left)


def delete_topic(
    topic: TopicArgument,
    topic_id: TopicIdOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete all remote data of one incarnation of a topic, if remote deletion is allowed. Local data stay.

    This marks the data; the next runs of expire delete them. This incarnation takes no more segments unless
    'tiered-storage undelete' brings it back before its objects are deleted.
    """
    output = Output(as_json)
    left: tuple[Finding, ...] = ()
    with opened(config, output) as remote_log:
        planned = remote_log.deletions.plan_topic_deletion(topic, topic_id)
        marked = tuple(one.topic_id_partition for one in planned.partitions)
        if dry_run:
            show_stop(remote_log, output)
        else:
            marked, left = remote_log.deletions.mark_topic_deleted(planned, lease_owner("delete-topic"))
        if marked:
            show_grace(remote_log.context, output, topic)
        states = remote_log.context.segments.partition_states()
    rows = []
    for one in planned.partitions:
        partition = one.topic_id_partition
        if partition in marked:
            state = states[partition].delete_state if partition in states else None
            rows.append(
                (str(partition), planned.topic_id, one.segments, one.size, None if state is None else state.name)
            )
    title = "Would be deleted" if dry_run else "Marked; the next run of expire deletes it"
    output.rows(title, _TOPIC_COLUMNS, rows, troubles=left)
    output.end(left)


def undelete(
    topic: TopicArgument,
    partitions: PartitionsOption = None,
    topic_id: TopicIdOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore the deleted remote data of a topic while their objects still exist.

    This undoes expire, delete-records, delete-topic and topics disable --delete-remote, for
    remote.log.deletion.grace.ms. The next run of expire expires again what is still past retention.
    """
    output = Output(as_json)
    numbers = parse_partitions(partitions)
    with opened(config, output) as remote_log:
        done, left = remote_log.deletions.undelete(
            topic, lease_owner("undelete"), numbers, topic_id=topic_id, dry_run=dry_run
        )
        again, _ = remote_log.deletions.plan_expiry(Selection(re.escape(topic), numbers), remote_log.context.clock())
    rows = [
        (
            str(each.topic_id_partition), each.topic_id_partition.topic_id, each.log_start_offset, len(each.segments),
            each.size, each.second_copies,
        )
        for each in done
    ]  # fmt: skip
    title = "Would be brought back" if dry_run else "Brought back"
    output.rows(title, _UNDELETED_COLUMNS, rows, troubles=left)
    for kept in sorted({each.kept for each in done if each.is_replaced and not dry_run}):
        output.say(f"note: {kept}")
    if again and not dry_run:
        output.say(
            f"note: the next run of expire expires {sum(plan.count for plan in again)} segments again, by the topic's "
            f"limits: raise them first ('tiered-storage topics set {topic} retention.ms=…'), or forbid deletion "
            f"('tiered-storage topics forbid-deletion {topic}')"
        )
    output.end(left)


def _why_not_trimmed(topic: Topic) -> str | None:
    if topic.remote_storage_enable and topic.local_deletion_allowed:
        return None
    return (
        f"local deletion is not allowed for {topic.name}, or it is not enabled: 'tiered-storage topics allow-deletion "
        f"{topic.name} --only local' allows it"
    )


def _why_not_expired(topic: Topic) -> str | None:
    if topic.remote_deletion_allowed:
        return None
    return (
        f"remote deletion is not allowed for {topic.name}: 'tiered-storage topics allow-deletion {topic.name} --only "
        "remote' allows it"
    )


def _trim_rows(plans: Iterable[LocalRetentionPlan]) -> list[tuple[object, ...]]:
    return [
        (str(each.topic_id_partition), each.new_local_start, len(each.segments), each.size, each.held_back)
        for each in plans
    ]


def _held_back(plans: Iterable[LocalRetentionPlan], *, waits: bool) -> list[Finding]:
    held_back = [one for one in plans if one.held_back and one.waits is waits]
    return [Finding(str(one.topic_id_partition), str(one.held_back)) for one in held_back]


def _stopped(why: str | None) -> list[Finding]:
    return [] if why is None else [Finding("", f"stopped before the end: {why}")]


def _refuse_record_deletions(plans: Iterable[ExpiryPlan], plan_file: Path | None) -> None:
    """Raise ConfigurationError for a plan that deletes records before an offset: expire never saves one."""
    from tiered_storage.remote_log.retention.expiry import Reason

    for plan in plans:
        if plan.reason is Reason.RECORDS:
            raise ConfigurationError(
                f"{plan_file}: {plan.topic_id_partition}: the plan deletes records before an offset, whether past "
                "retention or not, but expire only deletes what is past retention; nothing was done: delete records "
                "with 'tiered-storage delete-records', or make the plan again with --dry-run --save-plan"
            )


def _expiry_rows(plans: Iterable[ExpiryPlan]) -> list[tuple[object, ...]]:
    return [
        (
            str(each.topic_id_partition), each.new_log_start, len(each.segments) + len(each.superseded), each.size,
            each.never_copied_segments, each.never_copied_bytes,
        )
        for each in plans
    ]  # fmt: skip


def _waiting_row(due: PendingDeletion) -> tuple[object, ...]:
    return str(due.topic_id_partition), due.waiting, due.waiting_size, due.all_due_at


def _due_row(due: PendingDeletion) -> tuple[object, ...]:
    return str(due.topic_id_partition), due.segments, due.leftovers, due.size, due.as_a_whole


def _due_document(due: PendingDeletion) -> dict[str, object]:
    return dict(zip((column.replace(" ", "_") for column in _DUE_COLUMNS), _due_row(due), strict=True))
