"""The commands that end the life of something by a person's word: records of a partition, or a whole topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tiered_storage.cli_output import Output
from tiered_storage.cli_session import ConfigOption, DryRunOption, JsonOption, lease_owner, opened, say_stop
from tiered_storage.remote_log.copy_plan import Finding
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.record_deletion import TO_THE_END

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
    rows = []
    if planned is not None and (dry_run or found in done):
        rows = [(str(found), planned.new_log_start, len(planned.segments), planned.size)]
    title = "Would be deleted" if dry_run else "Deleted; the next run of expire removes the segments"
    if not dry_run and not done:
        title = "Nothing was deleted"
    output.rows(title, _RECORD_COLUMNS, rows, troubles=[asdict(finding) for finding in left])
    output.findings("error", left)
    if left:
        raise typer.Exit(1)


def delete_topic(
    topic: TopicArgument,
    topic_id: TopicIdOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete everything remote of one life of a topic, where remote deletion is allowed. What is local stays.

    It is marked, and the next runs of expire delete it. There is no way back, and this life takes no more segments.
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
    output.findings("error", left)
    if left:
        raise typer.Exit(1)
