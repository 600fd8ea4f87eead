"""The commands for leases: show who holds which partition, and end abandoned leases."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption, lease_owner, opened
from tiered_storage.clock import as_date
from tiered_storage.errors import ClusterUnreachableError, ConfigurationError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.metadata_store import beside_topic
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import NamedPartition

app = typer.Typer(
    no_args_is_help=True, help="Show which runs hold which partitions, and end the leases of runs that no longer exist."
)

TopicArgument = Annotated[str, typer.Argument(help="The topic's exact name, or its id as `leases list` shows it.")]
PartitionArgument = Annotated[int, typer.Argument(help="The partition's number.", min=0)]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_COLUMNS = ("partition", "topic id", "owner", "number", "until")


@app.command("list")
def list_leases(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every lease that has not expired, the one that expires last first."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        held = _held(remote_log.context)
    output.rows("Leases", _COLUMNS, list(map(_row, held)))


@app.command()
def end(
    topic: TopicArgument,
    partition: PartitionArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the lease of a partition, whoever holds it, so that the next run can take it.

    Use it only if the holder no longer runs, or its clock was ahead. A holder that still runs loses its work: its
    commits are refused.
    """
    output = Output(as_json)
    with opened(config, output) as remote_log:
        held = _held(remote_log.context)
        named = [
            lease
            for lease in held
            if topic in {lease.topic_id_partition.topic, lease.topic_id_partition.topic_id}
            and lease.topic_id_partition.partition == partition
        ]
        if not named:
            others = ", ".join(str(lease.topic_id_partition) for lease in held) or "none"
            raise ConfigurationError(f"no lease on {topic}-{partition} is held; held are: {others}")
        if len(named) > 1:
            ids = ", ".join(lease.topic_id_partition.topic_id for lease in named)
            raise ConfigurationError(
                f"several incarnations of {topic}-{partition} are held: give one of these ids: {ids}"
            )
        [lease] = named
        if not yes:
            typer.confirm(
                f"End the lease of {lease.topic_id_partition}, which {lease.owner} holds until "
                f"{as_date(lease.expires_at)}? If it still runs, its further changes are refused",
                abort=True,
                err=True,
            )
        ended = remote_log.context.leases.end(lease.topic_id_partition, lease_owner("leases end"))
    output.rows("Ended", _COLUMNS, [] if ended is None else [_row(lease)])


def _held(context: RemoteLogContext) -> list[Lease]:
    """Return the held leases, with the names of their partitions if known; no broker has to answer."""
    named = list[TopicIdPartition]()
    with suppress(ClusterUnreachableError):
        named += [one.topic_id_partition for one in context.source.names() if isinstance(one, NamedPartition)]
    known = {each: each for each in (*named, *beside_topic(context.store).partition_states())}
    return [_named(lease, known.get(lease.topic_id_partition)) for lease in context.leases.held()]


def _named(lease: Lease, partition: TopicIdPartition | None) -> Lease:
    return lease if partition is None else Lease(partition, lease.owner, lease.fencing_number, lease.expires_at)


def _row(lease: Lease) -> tuple[object, ...]:
    partition = lease.topic_id_partition
    return str(partition), partition.topic_id, lease.owner, lease.fencing_number, lease.expires_at
