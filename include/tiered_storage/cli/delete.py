"""The commands that end the life of something by a person's word: records of a partition, or a whole topic."""

from __future__ import annotations

import re
from dataclasses import asdict
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
    say_grace,
    say_stop,
)
from tiered_storage.remote_log.copy.plan import Finding
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END
from tiered_storage.remote_log.selection import Selection, parse_partitions

TopicArgument = Annotated[str, typer.Argument(help="The topic's exact name.")]
PartitionArgument = Annotated[int, typer.Argument(help="The partition's number.", min=0)]
BeforeOption = Annotated[
    int, typer.Option("--before", help=f"The first offset that stays; {TO_THE_END}: the end of what is stable.")
]
TopicIdOption = Annotated[
    str | None,
    typer.Option("--topic-id", help="Which life of the topic, where it had several.", show_default=False),
]

GiveUpOption = Annotated[
    bool, typer.Option("--give-up", help="Also where the store has lost objects of the partition: they are given up.")
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
    """Delete the records of a partition before an offset, in both tiers, where remote deletion is allowed.

    Readers see no more of them at once; the next runs of expire and retain remove what lies wholly before it.
    """
    output = Output(as_json)
    left: tuple[Finding, ...] = ()
    done: tuple[TopicIdPartition, ...] = ()
    with opened(config, output) as remote_log:
        found = remote_log.find_partition(topic, partition)
        planned = remote_log.deletions.plan_record_deletion(found, before)
        if dry_run:
            say_stop(remote_log, output)
        elif planned is not None:
            done, left = remote_log.deletions.mark_expired([planned], lease_owner("delete-records"), gives_up=give_up)
        if planned is not None and (dry_run or done):
            say_grace(remote_log, output, topic)
    rows = []
    if planned is not None and (dry_run or found in done):
        rows = [(str(found), planned.new_log_start, len(planned.segments), planned.size)]
    title = "Would be deleted" if dry_run else "Deleted; the next run of expire removes the segments"
    if not dry_run and not done:
        title = "Nothing was deleted"
    output.rows(title, _RECORD_COLUMNS, rows, troubles=[asdict(finding) for finding in left])
    output.end(left)


def delete_topic(
    topic: TopicArgument,
    topic_id: TopicIdOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete everything remote of one life of a topic, where remote deletion is allowed. What is local stays.

    It is marked, and the next runs of expire delete it. This life of the topic takes no more segments, unless
    'tiered-storage undelete' brings it back before its objects are deleted.
    """
    output = Output(as_json)
    left: tuple[Finding, ...] = ()
    with opened(config, output) as remote_log:
        planned = remote_log.deletions.plan_topic_deletion(topic, topic_id)
        marked = tuple(one.topic_id_partition for one in planned.partitions)
        if dry_run:
            say_stop(remote_log, output)
        else:
            marked, left = remote_log.deletions.mark_topic_deleted(planned, lease_owner("delete-topic"))
        if marked:
            say_grace(remote_log, output, topic)
        states = remote_log.segments.partition_states()
    rows = []
    for one in planned.partitions:
        partition = one.topic_id_partition
        if partition in marked:
            state = states[partition].delete_state if partition in states else None
            rows.append(
                (str(partition), planned.topic_id, one.segments, one.size, None if state is None else state.name)
            )
    title = "Would be deleted" if dry_run else "Marked; the next run of expire deletes it"
    output.rows(title, _TOPIC_COLUMNS, rows, troubles=[asdict(finding) for finding in left])
    output.end(left)


def undelete(
    topic: TopicArgument,
    partitions: PartitionsOption = None,
    topic_id: TopicIdOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring back what was deleted of a topic, while its objects are still there.

    Whatever deleted it: expire, delete-records, delete-topic or topics disable --delete-remote. Its objects stay for
    remote.log.deletion.grace.ms. What is still past retention expires again with the next run of expire.
    """
    output = Output(as_json)
    numbers = parse_partitions(partitions)
    with opened(config, output) as remote_log:
        done, left = remote_log.deletions.undelete(
            topic, lease_owner("undelete"), numbers, topic_id=topic_id, dry_run=dry_run
        )
        again, _ = remote_log.deletions.plan_expiry(Selection(re.escape(topic), numbers), remote_log.clock())
    rows = [
        (
            str(each.topic_id_partition), each.topic_id_partition.topic_id, each.log_start_offset, len(each.segments),
            each.size, each.second_copies,
        )
        for each in done
    ]  # fmt: skip
    title = "Would be brought back" if dry_run else "Brought back"
    output.rows(title, _UNDELETED_COLUMNS, rows, troubles=[asdict(finding) for finding in left])
    if again and not dry_run:
        output.say(
            f"note: by its limits the next run of expire ends {sum(plan.count for plan in again)} segments of it "
            f"again: raise them before ('tiered-storage topics set {topic} retention.ms=…'), or forbid it "
            f"('tiered-storage topics forbid-deletion {topic}')"
        )
    output.end(left)
