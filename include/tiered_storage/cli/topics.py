"""Show and change what Remote Log may do with each topic. It copies and deletes nothing that you did not enable here or
in the settings file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import Annotated, TypeAlias

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import (
    ConfigOption,
    JsonOption,
    opened,
    past_retention_documents,
    show_past_retention,
)
from tiered_storage.cli.common.topic_advice import advise_on_topics
from tiered_storage.cli.common.topic_refusals import ShortMarginError, keep_off, refuse_to_enable
from tiered_storage.cli.common.topic_table import (
    COPY_DISABLE,
    KnownTopics,
    Tier,
    clusters_here,
    is_pattern,
    is_withheld,
    known_topics,
    notes_on_names,
    show_topics,
    topic_row,
    why_unknown,
)
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.enabling.absent_topics import REPLACED_SINCE
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.tiering_policy import (
    PATTERNS,
    effective,
    patterns_in_force,
    recorded_pattern,
    refuse_compacted,
)
from tiered_storage.settings.topics import DECISIONS, TopicSettings

app = typer.Typer(no_args_is_help=True, help=__doc__)
app.command("advise")(advise_on_topics)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="A topic name, or a regular expression that must match the whole name. Text with a character that topic "
        "names cannot contain, such as *, is an expression.",
    ),
]
PropertiesArgument = Annotated[list[str], typer.Argument(help="Settings such as local.retention.ms=3600000.")]

OnlyOption = Annotated[Tier | None, typer.Option("--only", help="Only in this tier; default: both.")]

DeleteRemoteOption = Annotated[
    bool, typer.Option("--delete-remote", help="The next run of expire deletes all remote data of the topic.")
]

Check: TypeAlias = Callable[[RemoteLogContext, TopicIdPartition, KnownTopics], None]
"""Raises if a topic must not be changed."""

_DELETE_ON_DISABLE = "remote.log.delete.on.disable"


@app.command("list")
def list_topics(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every topic of the log directories or the running cluster, and of the remote log, with its settings."""
    output = Output(as_json)
    with opened(config, output, only_looks=True) as remote_log:
        found = known_topics(remote_log.context)
        incarnations = found.incarnations(lambda _: True)
        rows = [topic_row(remote_log.context, incarnation, found) for incarnation in incarnations]
        withheld = [incarnation for incarnation in incarnations if is_withheld(remote_log.context, incarnation)]
        patterns = patterns_in_force(remote_log.context.topics)
    show_topics("Topics", rows, output, patterns=patterns)
    _show_patterns(patterns, output)
    output.findings("note", [Finding(one.partition, f"left out: {one.reason}") for one in found.damaged])
    for one in withheld:
        output.say(
            f"note: {one.topic} ({one.topic_id}): the settings file allows deletion, but another incarnation of that "
            f"name was decided on since, or the metadata were rebuilt: 'tiered-storage topics allow-deletion "
            f"{one.topic}' allows it"
        )


@app.command()
def enable(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy the topic's closed segments from now on (remote.storage.enable). Topics that are compacted, that Kafka
    itself tiers, or whose brokers delete records too soon (enable.min.retention.margin.ms), are refused.

    A regular expression also enables the topics that match it later, even if none does now, until it is disabled. This
    resets remote.log.delete.on.disable: the next disable keeps remote data.
    """

    def change(context: RemoteLogContext, known: Topic) -> Topic:
        kept = {name: value for name, value in known.properties.items() if name != _DELETE_ON_DISABLE}
        wanted = replace(known, remote_storage_enable=True, properties=kept)
        refuse_compacted(known.name, effective(wanted, context.settings))
        return wanted

    _change(topic, change, config, as_json, check=refuse_to_enable, enables_pattern=True)


@app.command()
def disable(
    topic: NameArgument,
    delete_remote: DeleteRemoteOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop copying the topic. Its remote data stay readable, unless --delete-remote is given.

    A regular expression that was enabled no longer enables topics that match it later.
    """

    def change(_: RemoteLogContext, known: Topic) -> Topic:
        if not delete_remote:
            return replace(known, remote_storage_enable=False)
        if not known.remote_deletion_allowed:
            raise ConfigurationError(
                f"topic {known.name}: remote deletion is not allowed; nothing was changed: allow it first with "
                f"'tiered-storage topics allow-deletion {known.name} --only remote'"
            )
        asked = {**known.properties, _DELETE_ON_DISABLE: "true"}
        return replace(known, remote_storage_enable=False, properties=asked)

    _change(topic, change, config, as_json, enables_pattern=False, during_outages=True)


@app.command()
def pause(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Pause copying of the topic until it is resumed. Remote data stay readable and keep their retention."""
    _change(topic, lambda _, known: _with_property(known, COPY_DISABLE, "true"), config, as_json, during_outages=True)


@app.command()
def resume(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy a paused topic's closed segments again."""
    _change(topic, lambda _, known: _with_property(known, COPY_DISABLE, "false"), config, as_json)


@app.command("allow-deletion")
def allow_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let retention delete from the topic: local segments that are remote too, and everything past total retention.

    Without --only, in both tiers, by the limits in the table (log.retention.* if the topic has none of its own). Allow
    local deletion only if all consumers read through Remote Log: the brokers no longer serve trimmed offsets. Before
    anything is deleted, the command shows how much is already past those limits.
    """
    _change(topic, lambda _, known: _with_right(known, only, True), config, as_json, shows_past_retention=True)


@app.command("forbid-deletion")
def forbid_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Forbid deletion from the topic, in both tiers or only in the one that --only names."""
    _change(topic, lambda _, known: _with_right(known, only, False), config, as_json, during_outages=True)


@app.command("set")
def set_properties(
    topic: NameArgument, properties: PropertiesArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Set properties of the topic by Kafka's names; an empty value restores the default."""
    given = dict(_parsed(text) for text in properties)
    _refuse_decisions(given)

    def change(context: RemoteLogContext, known: Topic) -> Topic:
        merged = {name: value for name, value in {**known.properties, **given}.items() if value}
        TopicSettings.parse(known.name, merged)
        wanted = replace(known, properties=merged)
        resolved = effective(wanted, context.settings)
        if wanted.remote_storage_enable:
            refuse_compacted(known.name, resolved)
        return wanted

    _change(topic, change, config, as_json)


def _with_right(topic: Topic, only: Tier | None, allowed: bool) -> Topic:
    return replace(
        topic,
        local_deletion_allowed=topic.local_deletion_allowed if only is Tier.REMOTE else allowed,
        remote_deletion_allowed=topic.remote_deletion_allowed if only is Tier.LOCAL else allowed,
    )


def _change(
    named: str,
    change: Callable[[RemoteLogContext, Topic], Topic],
    config: Path | None,
    as_json: bool,
    check: Check = lambda *_: None,
    *,
    shows_past_retention: bool = False,
    enables_pattern: bool | None = None,
    during_outages: bool = False,
) -> None:
    """Change every topic that `named` matches, and show them all; a refused topic leaves the others changed.

    `enables_pattern`: whether a pattern enables the topics that match it later, or no longer; None: as before.
    `during_outages`: topics of the remote log are changed although the cluster does not answer.
    """
    output = Output(as_json)
    unreachable = list[str]()
    with opened(config, output, create=True) as remote_log:
        found = known_topics(remote_log.context, unreachable if during_outages else None)
        matching = found.incarnations(_naming(named))
        chosen = {name: list(of_name) for name, of_name in groupby(matching, lambda one: one.topic)}
        is_ended = enables_pattern is False and _is_recorded(remote_log.context, named)
        clusters = {one.cluster_id for one in matching}
        if not chosen and enables_pattern and is_pattern(named):
            clusters = clusters_here(remote_log.context, found)
        if not chosen and not clusters and not is_ended:
            raise ConfigurationError("; ".join([why_unknown(remote_log.context, found, named), *unreachable]))
        refused: list[str] = []
        changed: set[str] = set()
        notes = [f"only topics of the remote log are known now: {why}" for why in unreachable]
        notes += [f"so far {why_unknown(remote_log.context, found, named)}"] if clusters and not chosen else []
        for name, of_name in chosen.items():
            try:
                _change_topic(remote_log.context, of_name, change, check, found)
            except TieredStorageError as error:
                # A pattern is recorded all the same: it also enables what comes later.
                if len(chosen) == 1 and not (enables_pattern and is_pattern(named)):
                    raise
                is_kafkas = any(each.tiered_by_kafka for one in of_name for each in found.local_of(one))
                (notes if is_kafkas else refused).append(f"left alone: {error}" if is_kafkas else str(error))
                if isinstance(error, ShortMarginError):
                    notes += keep_off(remote_log.context, of_name, found)
            else:
                changed.add(name)
        notes += notes_on_names(changed, found)
        if enables_pattern is not None and is_pattern(named):
            _record_pattern(remote_log.context, named, clusters, is_enabled=enables_pattern)
        shown = [incarnation for of_name in chosen.values() for incarnation in of_name]
        rows = [topic_row(remote_log.context, incarnation, found) for incarnation in shown]
        past = [one for incarnation in shown for one in found.of(incarnation)] if shows_past_retention else []
        found_past = remote_log.deletions.past_retention(past) if past else ()
        patterns = patterns_in_force(remote_log.context.topics)
    more = {"past_retention": past_retention_documents(found_past)} if shows_past_retention else {}
    show_topics("Now", rows, output, troubles=[{"message": each} for each in refused], notices=notes, **more)
    show_past_retention(found_past, output)
    if enables_pattern is not None:
        _show_patterns(patterns, output)
    for each in notes:
        output.say(f"note: {each}")
    for each in refused:
        output.say(f"error: {each}")
    if refused:
        raise typer.Exit(1)


def _is_recorded(context: RemoteLogContext, pattern: str) -> bool:
    return any(row.topic_id == pattern for row in context.topics.named(PATTERNS))


def _record_pattern(context: RemoteLogContext, pattern: str, clusters: set[str], *, is_enabled: bool) -> None:
    """Record that `pattern` enables topics of `clusters` from now on; or that it enables none, in any cluster."""
    recorded = {row.cluster_id for row in context.topics.named(PATTERNS) if row.topic_id == pattern}
    for cluster_id in sorted(clusters if is_enabled else recorded):
        context.topics.put(recorded_pattern(cluster_id, pattern, is_enabled=is_enabled))


def _show_patterns(patterns: Sequence[str], output: Output) -> None:
    for pattern in patterns:
        output.say(
            f"note: topics that match {pattern} are enabled as they appear: 'tiered-storage topics disable "
            f"{quote(pattern)}' ends this, and disables those that match now"
        )


def _change_topic(
    context: RemoteLogContext,
    incarnations: Sequence[TopicIdPartition],
    change: Callable[[RemoteLogContext, Topic], Topic],
    check: Check,
    found: KnownTopics,
) -> None:
    # Start with every incarnation: a decision on one removes the file's rights from the others.
    starts = [context.decided_topic(incarnation) for incarnation in incarnations]
    for incarnation, start in zip(incarnations, starts, strict=True):
        check(context, incarnation, found)

        def changed(known: Topic | None, start: Topic = start) -> Topic:
            return change(context, known or start)

        context.topics.change(incarnation.cluster_id, incarnation.topic_id, changed)


def _naming(named: str) -> Callable[[str], bool]:
    """Return a predicate on topic names for `named`.

    A valid topic name matches only itself, so that its dots match nothing else; everything else is a pattern. Raises
    ConfigurationError if that is not a valid regular expression.
    """
    return Selection(named).matches if is_pattern(named) else named.__eq__


def _with_property(topic: Topic, name: str, value: str) -> Topic:
    return replace(topic, properties={**topic.properties, name: value})


def _refuse_decisions(names: Iterable[str]) -> None:
    """Raise ConfigurationError for a decision that has its own command; as a property it would have no effect."""
    for name in names:
        stands_for = {older.target for older in TopicSettings.older_names if older.name == name} | {name}
        if name == REPLACED_SINCE:
            raise ConfigurationError(
                f"{name} is not set as a property: expire writes it; 'tiered-storage topics forbid-deletion' keeps the "
                "remote data of a topic that was created again"
            )
        if stands_for & DECISIONS:
            raise ConfigurationError(
                f"{name} is not set as a property: use 'tiered-storage topics enable', 'disable', 'allow-deletion' or "
                "'forbid-deletion'"
            )


def _parsed(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"{text!r} is not a setting: write name=value, such as local.retention.ms=3600000")
    return name.strip(), value.strip()
