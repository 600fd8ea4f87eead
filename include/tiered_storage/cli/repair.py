"""The commands that repair: the findings of an audit, lost metadata, and the wrapping of data keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.progress import leave_at_once, said
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    known_selection,
    lease_owner,
    opened,
    selected,
)
from tiered_storage.cli.copy import WorkersOption, copy_here
from tiered_storage.cli.read import show_notices
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.audit.report import AuditReport
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import Finding
from tiered_storage.remote_log.progress import unreported
from tiered_storage.remote_log.rebuild import metadata_rebuild as remote_log_rebuild
from tiered_storage.remote_log.rebuild.new_metadata import new_metadata_place
from tiered_storage.remote_log.repair.key_rotation import KeyRotator
from tiered_storage.remote_log.repair.plan import RepairPlan
from tiered_storage.remote_log.repair.repairs import RepairReport
from tiered_storage.remote_log.selection import Selection
from tiered_storage.settings.settings import load_settings

_COLUMNS = ("action", "partition", "what")
_LOSES_THE_STORE = (
    "Answer no if this or another installation still uses those metadata, or if rsm.config.url is wrong. If you answer "
    "yes, the store refuses those metadata from now on. --yes skips this question."
)


def repair(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Find the damage with a deep audit.")] = False,
    workers: WorkersOption = 2,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Audit, copy damaged segments again if the local log still has them, commit complete but uncommitted copies that
    no segment covers, delete orphans, and audit again."""
    output = Output(as_json)
    with opened(config, output, outdated=True) as remote_log:
        selection = selected(topics, partitions)
        found = _audited(remote_log, selection, output, deep=deep)
        plan = remote_log.repairs.plan(found, selection)
        if dry_run:
            _show("Would be repaired", list(_planned(plan)), plan, found, output)
            return
        hung: list[bool] = []
        left: list[Finding] = []
        done = remote_log.repairs.carry_out(
            plan, lease_owner("repair"), lambda copies: _copy(remote_log, copies, workers, output, hung, left)
        )
        done = replace(done, failures=(*left, *done.failures))
        after = found if plan.is_empty else _audited(remote_log, selection, output, deep=deep)
    try:
        _show("Repaired", list(_done(done)), plan, after, output, done)
    finally:
        if any(hung):
            leave_at_once(1)


def rebuild_metadata(
    into: Annotated[
        Path | None,
        typer.Option("--into", help="The new metadata file; default: rlmm.config.url.", show_default=False),
    ] = None,
    dry_run: DryRunOption = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before the store refuses the metadata that used it so far.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild lost metadata from the store alone, into a new file. Then deletion is forbidden for every topic."""
    output = Output(as_json)
    settings = load_settings(config)
    path = new_metadata_place(settings, into)
    if not (dry_run or yes):
        holder = remote_log_rebuild.store_holder(settings, store_options(settings))
        if holder is not None:
            typer.confirm(f"{holder} {_LOSES_THE_STORE} Take the store for {path}?", abort=True, err=True)
    report = remote_log_rebuild.rebuild_metadata(settings, store_options(settings), wall_clock, into, dry_run=dry_run)
    counts = (report.marked, report.unfinished, len(report.unreadable))
    row = (report.partitions, report.segments, report.size, *counts)
    title = f"Would be rebuilt in {path}" if dry_run else f"Rebuilt in {path}"
    output.rows(
        title, ("partitions", "segments", "bytes", "marked", "unfinished", "unreadable"), [row],
        file=str(path), troubles=report.unreadable,
        notices=report.notices,
    )  # fmt: skip
    output.findings("error", report.unreadable)
    output.findings("note", report.notices)
    if not report.segments:
        output.say("note: the store holds no segment: if any was ever copied, is the URL right, and the disk mounted?")
    if not dry_run:
        output.say(
            "note: deletion is forbidden for every topic; 'tiered-storage topics list' shows it, 'topics "
            "allow-deletion' allows it"
        )
        output.say(
            "note: limits, pauses and the list of tiered topics are those of the settings file again: repeat other "
            "decisions ('tiered-storage topics') before you allow deletion"
        )
        output.say("note: a stop of all deletions is not rebuilt: run 'tiered-storage stop-deletions' again")
    if report.unreadable:
        raise typer.Exit(1)


def _audited(remote_log: RemoteLogManager, selection: Selection, output: Output, *, deep: bool) -> AuditReport:
    on_moved = said("read", remote_log.checks.to_read(selection), output) if deep else unreported
    return remote_log.checks.audit(selection, deep=deep, on_moved=on_moved)


def _copy(
    remote_log: RemoteLogManager, copies: CopyPlan, workers: int, output: Output, hung: list[bool], left: list[Finding]
) -> CommitReport:
    begun = remote_log.begin_copy(copies, lease_owner("repair"))
    left.extend(begun.left)
    report, has_hung = copy_here(remote_log, begun, workers, output)
    hung.append(has_hung)
    return report


def _planned(plan: RepairPlan) -> Iterator[tuple[str, str, str]]:
    for partition in plan.documents:
        yield "write again", str(partition), "the partition manifest in the store"
    for planned in plan.copies.segments:
        what = f"offsets {planned.base_offset} to {planned.end_offset} from {planned.location}"
        yield "copy again", str(planned.topic_id_partition), what
    for segment in plan.unfinished:
        what = f"offsets {segment.start_offset} to {segment.end_offset} of {segment.segment_id.id}"
        yield "finish", str(segment.topic_id_partition), what
    for segment in plan.without_indexes:
        what = f"offsets {segment.start_offset} to {segment.end_offset} of {segment.segment_id.id} from its .log"
        yield "rebuild indexes", str(segment.topic_id_partition), what
    for segment in plan.replaced:
        yield "mark for deletion", str(segment.topic_id_partition), segment.segment_id.id
    for leftovers in plan.leftovers:
        for name in leftovers.names:
            yield "remove", str(leftovers.topic_id_partition), name


def _done(done: RepairReport) -> Iterator[tuple[str, str, str]]:
    for partition in done.documents:
        yield "written again", str(partition), "the partition manifest in the store"
    for segment in done.copied:
        what = f"offsets {segment.start_offset} to {segment.end_offset} as {segment.segment_id.id}"
        yield "copied again", str(segment.topic_id_partition), what
    for segment in done.finished:
        what = f"offsets {segment.start_offset} to {segment.end_offset} as {segment.segment_id.id}"
        yield "finished", str(segment.topic_id_partition), what
    for segment in done.rebuilt:
        what = f"offsets {segment.start_offset} to {segment.end_offset} of {segment.segment_id.id} from its .log"
        yield "rebuilt indexes", str(segment.topic_id_partition), what
    for segment in done.retired:
        yield "marked for deletion", str(segment.topic_id_partition), segment.segment_id.id
    for name in done.removed:
        yield "removed", "", name


def _show(
    title: str,
    rows: list[tuple[str, str, str]],
    plan: RepairPlan,
    audited: AuditReport,
    output: Output,
    done: RepairReport | None = None,
) -> None:
    troubles = (*plan.advice, *(done.failures if done else ()))
    output.rows(
        title, _COLUMNS, rows,
        anomalies=audited.anomaly_count, troubles=troubles,
    )  # fmt: skip
    output.findings("left to you", plan.advice)
    output.findings("error", done.failures if done else ())
    output.findings("note", done.notices if done else ())
    show_notices(audited, output)
    if done and audited.anomalies:
        output.say(f"{audited.anomaly_count} anomalies are left; 'tiered-storage audit' names them")
    if troubles or audited.unread or audited.unseen or (done and audited.anomalies):
        raise typer.Exit(1)


def rotate_keys(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wrap the data keys of encrypted segments again, by the active key of the key ring. Segment data are not touched.

    Keep the earlier keys in the key ring until this command shows no segment of theirs: a copy that began before the
    rotation may finish after it. Repeat the command if it was interrupted, or if another run held a partition.
    """
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = known_selection(remote_log.context, topics, partitions)
        report = KeyRotator(remote_log.context, lease_owner("rotate-keys")).rotate(selection, dry_run=dry_run)
    done = f"{report.due} due (dry run)" if dry_run else f"{report.rotated} rotated"
    rows = [(key, count, key == report.active) for key, count in sorted((+report.keys).items())]
    output.rows(
        f"Keys of encrypted segments, {done}",
        ("key", "segments", "active"),
        rows,
        active=report.active,
        due=report.due,
        rotated=report.rotated,
        failures=[str(each) for each in report.failures],
        left=[str(each) for each in report.left],
    )
    output.findings("Left, as another run holds the partition", report.left)
    output.end([*report.failures, *report.left])
