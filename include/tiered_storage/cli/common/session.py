"""The options that commands share, and the remote log that is open while a command runs."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.clock import as_date, wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import RemoteLogContext, store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.selection import Selection, parse_partitions
from tiered_storage.remote_log.source.partition_log import NamedPartition
from tiered_storage.settings.properties.cluster_files import other_clusters
from tiered_storage.settings.settings import cluster_file, load_settings

if TYPE_CHECKING:
    from tiered_storage.remote_log.retention.past_retention import PastRetention


def _settings_file(given: str) -> Path:
    """Return the settings file for `given`: the path of a file, or the name of another cluster.

    Raises ConfigurationError, which lists the other clusters, if `given` is neither.
    """
    path = Path(given)
    if path.name == given and (given in other_clusters(os.environ) or not (path.suffix or path.is_file())):
        return cluster_file(given, os.environ)
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--cluster",
        parser=_settings_file,
        metavar="FILE|NAME",
        help="The settings file, or the name of another cluster, whose file is in the first one's folder; else "
        "TIERED_STORAGE_CONFIG, else include/tiered_storage.yaml.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document instead of a table.")]
TopicsOption = Annotated[str, typer.Option("--topics", help="A regular expression (RE2) that whole topic names match.")]
PartitionsOption = Annotated[
    str | None,
    typer.Option("--partitions", help="Partition numbers, such as 0,2-4; default: all.", show_default=False),
]
LimitOption = Annotated[int | None, typer.Option("--max-segments", min=1, help="At most this many segments.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


@contextmanager
def opened(
    config: Path | None,
    output: Output,
    *,
    create: bool = False,
    only_looks: bool = False,
    outdated: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Iterator[RemoteLogManager]:
    """Open the remote log that the settings describe; print notices on standard error, also those that come up later.

    `create` creates missing metadata, for the commands that people run first; with `only_looks`, no metadata are left
    behind. `outdated` opens metadata older than the store, for the commands that report or repair them; all others
    refuse them. `environ` has the settings that override the file's; None: this process's environment.
    """
    settings = load_settings(config, environ=environ)
    for notice in settings.notices:
        output.say(f"note: {notice}")
    options = store_options(settings)
    with RemoteLogManager.open(
        settings, wall_clock, options, create=create, only_looks=only_looks, outdated=outdated
    ) as remote_log:
        known = remote_log.context.notices
        for notice in known:
            output.say(f"note: {notice}")
        try:
            yield remote_log
        finally:
            for notice in remote_log.context.notices:
                if notice not in known:
                    output.say(f"note: {notice}")


def selected(topics: str, partitions: str | None) -> Selection:
    """Return the selection for TopicsOption and PartitionsOption. Raises ConfigurationError if they are invalid."""
    return Selection(topics, parse_partitions(partitions))


def known_selection(context: RemoteLogContext, topics: str, partitions: str | None) -> Selection:
    """Return the selection. Raises ConfigurationError if it matches no known partition: it may be mistyped."""
    selection = selected(topics, partitions)
    if why := context.why_nothing_matches(selection):
        raise ConfigurationError(f"{why}; nothing was done")
    return selection


def named_partitions(context: RemoteLogContext) -> list[TopicIdPartition]:
    """Return every local or remote partition, except those of Kafka's internal topics."""
    named = context.source.names()
    local = [one.topic_id_partition for one in named if isinstance(one, NamedPartition) and not one.is_internal]
    return sorted({*local, *context.segments.list_partitions()})


def chosen_topics(context: RemoteLogContext, selection: Selection) -> list[Topic]:
    """Return the decisions on each selected topic, by name."""
    chosen = [one for one in named_partitions(context) if selection.matches(one.topic, one.partition)]
    incarnations = {(one.cluster_id, one.topic_id): one for one in chosen}
    return sorted(map(context.decided_topic, incarnations.values()), key=lambda topic: topic.name)


def refused_by_decision(
    context: RemoteLogContext, selection: Selection, why_not: Callable[[Topic], str | None]
) -> list[Finding]:
    """Return one finding a topic if the user named topics and each has a reason in `why_not`; else none."""
    if not selection.is_narrowed:
        return []
    reasons = [why_not(topic) for topic in chosen_topics(context, selection)]
    found = dict.fromkeys(reason for reason in reasons if reason is not None)
    return [] if None in reasons else [Finding("", f"{reason}; nothing of it was done") for reason in found]


def lease_owner(command: str) -> str:
    """Return the name under which this process holds leases.

    Two containers may have the same host name and process number; the same owner would take over the other's leases.
    """
    return f"tiered-storage {command} {socket.gethostname()}/{os.getpid()}/{_random_of(os.getpid())}"


@cache
def _random_of(_: int) -> str:
    # A forked process has another number, and gets another one.
    return secrets.token_hex(4)


def show_past_retention(found: Sequence[PastRetention], output: Output) -> None:
    """Print for each topic what is already past its limits in each tier, and whether the next runs may delete it."""
    for one in found:
        if not one.is_anything:
            continue
        local = f"{one.local.segments:,} local segments ({show_size(one.local.size)}) are past local retention"
        allowed = _allowed(one.topic.local_deletion_allowed)
        if one.local_waiting.segments:
            allowed += f" ({one.local_waiting.segments:,} of them wait: 'tiered-storage retain --dry-run' says why)"
        remote = f"{one.remote.segments:,} remote ones ({show_size(one.remote.size)})"
        never = f"{one.never_copied.segments:,} never copied ({show_size(one.never_copied.size)}) past total retention"
        output.say(
            f"note: {one.topic.name}: {local}, deletion {allowed}; {remote} and "
            f"{never}, deletion {_allowed(one.topic.remote_deletion_allowed)}"
        )


def past_retention_documents(found: Sequence[PastRetention]) -> list[dict[str, object]]:
    """Return the same as JSON documents."""
    return [
        {
            "topic": one.topic.name,
            "topic_id": one.topic.topic_id,
            **{
                f"{name}_{unit}": getattr(getattr(one, name), attribute)
                for name in ("local", "local_waiting", "remote", "never_copied")
                for unit, attribute in (("segments", "segments"), ("bytes", "size"))
            },
        }
        for one in found
    ]


def _allowed(is_allowed: bool) -> str:
    return "allowed" if is_allowed else "not allowed"


def show_grace(context: RemoteLogContext, output: Output, topic: str = "TOPIC") -> None:
    """Print when the objects marked now are deleted, and how to bring them back until then."""
    grace_ms = context.settings.remote_log_deletion_grace_ms
    if grace_ms:
        end = as_date(context.clock() + grace_ms)
        output.say(
            f"note: the first run of expire after {end} deletes the objects marked "
            f"now (remote.log.deletion.grace.ms); until then 'tiered-storage undelete {topic}' brings them back"
        )


def source_notices(context: RemoteLogContext) -> list[Finding]:
    """Return what the source reports besides partitions, such as a wrong clock: deletion by age depends on it."""
    return [Finding("", notice) for notice in context.source.notices]


def show_stop(remote_log: RemoteLogManager, output: Output) -> None:
    """After a dry run, print why nothing would be deleted: all deletions are stopped, or the clock is not trusted."""
    why = remote_log.deletions.why_nothing_is_deleted()
    if why is not None:
        output.say(f"note: nothing is deleted for now: {why}")
