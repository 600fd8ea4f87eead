"""The commands that copy and delete segments: plan, copy, retain, expire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.cli.common.plans import (
    PlanOption,
    SavePlanOption,
    ask_at_a_terminal,
    check_plan_options,
    copy_rows,
    made_or_read,
)
from tiered_storage.cli.common.progress import PROGRESS_SHOWN_SECONDS, leave_at_once, said, watched
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    chosen_topics,
    known_selection,
    lease_owner,
    named_partitions,
    opened,
    past_retention_documents,
    refused_by_decision,
    show_grace,
    show_past_retention,
    show_stop,
    source_notices,
)
from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.copy.tasks import CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding
from tiered_storage.remote_log.retention.due_segments import PendingDeletion
from tiered_storage.remote_log.tiering_policy import effective

if TYPE_CHECKING:
    from tiered_storage.remote_log.copy.start import BegunCopy
    from tiered_storage.remote_log.copy.tasks import CommitReport
    from tiered_storage.remote_log.retention.expiry import ExpiryPlan
    from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
    from tiered_storage.remote_log.retention.past_retention import PastRetention
    from tiered_storage.remote_log.selection import Selection
    from tiered_storage.settings.settings import Settings

LimitOption = Annotated[int | None, typer.Option("--max-segments", min=1, help="At most this many segments.")]
WorkersOption = Annotated[int, typer.Option("--workers", min=1, help="How many groups of partitions to copy at once.")]

_WOULD_BE_REMOVED = "Would be removed locally"
_TRIM_COLUMNS = ("partition", "new local start", "segments", "bytes", "held back")
_EXPIRY_COLUMNS = ("partition", "new log start", "segments", "bytes", "never copied segments", "never copied bytes")

_WAITING_COLUMNS = ("partition", "segments", "bytes", "deleted after")
_WAITING_KEYS = tuple(column.replace(" ", "_") for column in _WAITING_COLUMNS)
_DUE_COLUMNS = ("partition", "segments", "left by copies", "bytes", "as a whole")

_FEW_TOPICS = 10


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

    Beside a running cluster, its brokers delete these records (DeleteRecords), once every consumer group has read them.
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


def copy_here(
    remote_log: RemoteLogManager, begun: BegunCopy, workers: int, output: Output
) -> tuple[CommitReport, bool]:
    """Copy and commit in this process, and release the leases; also return whether copies hung.

    The report's failures include what could not be begun. Threads of hung copies still run: end the process with
    leave_at_once then.
    """
    from tiered_storage.remote_log.copy.job import CopyJob
    from tiered_storage.remote_log.jobs.groups import JobThreads
    from tiered_storage.remote_log.jobs.throttle import QuotaLimit

    context, given_up = remote_log.context, Event()
    with remote_log.held(begun, lambda: not given_up.is_set()):
        # The same steps as a run from Airflow, with threads of this process in place of Spark.
        job = remote_log.write_copy_job(f"runs/command-line/{random_uuid()}", begun)
        _, description = CopyJob.read(context.work, job.files.folder)

        limit = QuotaLimit(description.quota)

        def run_group(number: int) -> None:
            sizes = description.sizes
            storage, clock, access = context.storage, context.clock, context.source.access
            job.run_group(number, storage, sizes, clock, PROGRESS_SHOWN_SECONDS, limit, access)

        threads = JobThreads(job.groups, workers, run_group)

        def give_up() -> None:
            given_up.set()
            threads.give_up()

        stuck_after_ms = context.settings.copy_stuck_after_ms
        with watched(job.files, job.size_of(begun.tasks), stuck_after_ms, give_up, output) as watch:
            threads.run()
        report = remote_log.commit_copy(job.outcomes(watch.stuck))
    return replace(report, failures=(*begun.failed, *report.failures)), watch.stuck is not None


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
