"""The command that copies what Kafka itself tiered into a remote log of our own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.plans import copy_rows
from tiered_storage.cli.common.progress import leave_at_once
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PartitionsOption,
    lease_owner,
    opened,
)
from tiered_storage.cli.copy import WorkersOption, copy_here
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata
from tiered_storage.remote_log.selection import parse_partitions

if TYPE_CHECKING:
    from tiered_storage.remote_log.adopt.adoption import Adoption
    from tiered_storage.remote_log.copy.tasks import CopyPlan

_COLUMNS = ("partition", "start offset", "end offset", "bytes")


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
                (*_COLUMNS, "file"), copy_rows(due),
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
    output.rows(title, _COLUMNS, rows, troubles=troubles, notices=notices)
    output.findings("note", notices)
    if has_hung:
        output.findings("error", troubles)
        leave_at_once(1)
    output.end(troubles)
