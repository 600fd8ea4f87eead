"""The commands that delete or undelete on request: records of a partition, or a whole topic."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PartitionsOption,
    lease_owner,
    opened,
    show_grace,
    show_stop,
)
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END
from tiered_storage.remote_log.selection import Selection, parse_partitions

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

_RECORD_COLUMNS = ("partition", "new log start", "segments", "bytes")
_UNDELETED_COLUMNS = ("partition", "topic id", "log start", "segments", "bytes", "second copies")
_TOPIC_COLUMNS = ("partition", "topic id", "segments", "bytes", "state")


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
        found = remote_log.find_partition(topic, partition)
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
