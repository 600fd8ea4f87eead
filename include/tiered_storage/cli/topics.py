"""Show and change what Remote Log may do with each topic. It copies and deletes nothing that you did not enable here or
in the settings file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import (
    ConfigOption,
    JsonOption,
    opened,
    past_retention_documents,
    show_past_retention,
)
from tiered_storage.cli.common.topic_table import (
    COPY_DISABLE,
    KnownTopics,
    Tier,
    decided,
    is_withheld,
    known_topics,
    show_topics,
    topic_row,
)
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.segment_source import NamedPartition
from tiered_storage.remote_log.tiering_policy import (
    effective,
    refuse_compacted,
    refuse_log,
)
from tiered_storage.settings.topics import DECISIONS, TopicSettings

app = typer.Typer(no_args_is_help=True, help=__doc__)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="A topic's name; or, with a character that no name has, a regular expression for whole names.",
    ),
]
PropertiesArgument = Annotated[list[str], typer.Argument(help="Settings such as local.retention.ms=3600000.")]

OnlyOption = Annotated[Tier | None, typer.Option("--only", help="Only in this tier; default: both.")]

DeleteRemoteOption = Annotated[
    bool, typer.Option("--delete-remote", help="The next run of expire deletes all remote data of the topic.")
]

_A_NAME = re.compile(r"[A-Za-z0-9._-]+")
_DELETE_ON_DISABLE = "remote.log.delete.on.disable"


@app.command("list")
def list_topics(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every topic of the log directories and of the remote log, with its settings."""
    output = Output(as_json)
    with opened(config, output, only_looks=True) as remote_log:
        found = known_topics(remote_log)
        incarnations = found.incarnations(lambda _: True)
        rows = [topic_row(remote_log, incarnation, found) for incarnation in incarnations]
        withheld = [incarnation for incarnation in incarnations if is_withheld(remote_log, incarnation)]
    show_topics("Topics", rows, output)
    output.findings("note", [Finding(one.partition, f"left out: {one.reason}") for one in found.damaged])
    for one in withheld:
        output.say(
            f"note: {one.topic} ({one.topic_id}): the settings file allows deletion, but another incarnation of that "
            f"name was decided on since, or the metadata were rebuilt: 'tiered-storage topics allow-deletion "
            f"{one.topic}' allows it"
        )


@app.command()
def enable(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy the topic's closed segments from now on (remote.storage.enable). Topics that are compacted, or that Kafka
    itself tiers, are refused.

    This resets remote.log.delete.on.disable: the next disable keeps remote data.
    """

    def change(remote_log: RemoteLogManager, known: Topic) -> Topic:
        kept = {name: value for name, value in known.properties.items() if name != _DELETE_ON_DISABLE}
        wanted = replace(known, remote_storage_enable=True, properties=kept)
        refuse_compacted(known.name, effective(wanted, remote_log.settings))
        return wanted

    _change(topic, change, config, as_json, check=_refuse_to_enable)


@app.command()
def disable(
    topic: NameArgument,
    delete_remote: DeleteRemoteOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop copying the topic. Its remote data stay readable, unless --delete-remote is given."""

    def change(_: RemoteLogManager, known: Topic) -> Topic:
        if not delete_remote:
            return replace(known, remote_storage_enable=False)
        if not known.remote_deletion_allowed:
            raise ConfigurationError(
                f"topic {known.name}: remote deletion is not allowed; nothing was changed: allow it first with "
                f"'tiered-storage topics allow-deletion {known.name} --only remote'"
            )
        asked = {**known.properties, _DELETE_ON_DISABLE: "true"}
        return replace(known, remote_storage_enable=False, properties=asked)

    _change(topic, change, config, as_json)


@app.command()
def pause(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Pause copying of the topic until it is resumed. Remote data stay readable and keep their retention."""
    _change(topic, lambda _, known: _with_property(known, COPY_DISABLE, "true"), config, as_json)


@app.command()
def resume(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy a paused topic's closed segments again."""
    _change(topic, lambda _, known: _with_property(known, COPY_DISABLE, "false"), config, as_json)


@app.command("allow-deletion")
def allow_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let retention delete from the topic: local segments that are remote too, and everything past total retention.

    Without --only, in both tiers, by the limits in the table (log.retention.* if the topic has none of its own). Once a
    broker starts on a trimmed directory, or the brokers of a running cluster deleted what is remote, their own readers
    no longer get those offsets: allow local deletion only if they read through Remote Log. Before anything is deleted,
    the command shows how much is already past those limits.
    """
    _change(topic, lambda _, known: _with_right(known, only, True), config, as_json, shows_past_retention=True)


@app.command("forbid-deletion")
def forbid_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Forbid deletion from the topic, in both tiers or only in the one that --only names."""
    _change(topic, lambda _, known: _with_right(known, only, False), config, as_json)


@app.command("set")
def set_properties(
    topic: NameArgument, properties: PropertiesArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Set properties of the topic by Kafka's names; an empty value restores the default."""
    given = dict(_parsed(text) for text in properties)
    _refuse_decisions(given)

    def change(remote_log: RemoteLogManager, known: Topic) -> Topic:
        merged = {name: value for name, value in {**known.properties, **given}.items() if value}
        TopicSettings.parse(known.name, merged)
        wanted = replace(known, properties=merged)
        resolved = effective(wanted, remote_log.settings)
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
    change: Callable[[RemoteLogManager, Topic], Topic],
    config: Path | None,
    as_json: bool,
    check: Callable[[RemoteLogManager, TopicIdPartition], None] = lambda *_: None,
    *,
    shows_past_retention: bool = False,
) -> None:
    """Change every topic that `named` matches, and show them all; a refused topic leaves the others changed."""
    output = Output(as_json)
    with opened(config, output, create=True) as remote_log:
        found = known_topics(remote_log)
        matching = found.incarnations(_naming(named))
        chosen = {name: list(of_name) for name, of_name in groupby(matching, lambda one: one.topic)}
        if not chosen:
            raise ConfigurationError(_why_unknown(found, named))
        refused: list[str] = []
        for of_name in chosen.values():
            try:
                _change_topic(remote_log, of_name, change, check)
            except TieredStorageError as error:
                if len(chosen) == 1:
                    raise
                refused.append(str(error))
        shown = [incarnation for of_name in chosen.values() for incarnation in of_name]
        rows = [topic_row(remote_log, incarnation, found) for incarnation in shown]
        past = [one for incarnation in shown for one in found.of(incarnation)] if shows_past_retention else []
        found_past = remote_log.deletions.past_retention(past) if past else ()
    more = {"past_retention": past_retention_documents(found_past)} if shows_past_retention else {}
    show_topics("Now", rows, output, troubles=[{"message": each} for each in refused], **more)
    show_past_retention(found_past, output)
    for each in refused:
        output.say(f"error: {each}")
    if refused:
        raise typer.Exit(1)


def _change_topic(
    remote_log: RemoteLogManager,
    incarnations: Sequence[TopicIdPartition],
    change: Callable[[RemoteLogManager, Topic], Topic],
    check: Callable[[RemoteLogManager, TopicIdPartition], None],
) -> None:
    # Start with every incarnation: a decision on one removes the file's rights from the others.
    starts = [decided(remote_log, incarnation) for incarnation in incarnations]
    for incarnation, start in zip(incarnations, starts, strict=True):
        check(remote_log, incarnation)

        def changed(known: Topic | None, start: Topic = start) -> Topic:
            return change(remote_log, known or start)

        remote_log.topics.change(incarnation.cluster_id, incarnation.topic_id, changed)


def _naming(named: str) -> Callable[[str], bool]:
    """Return a predicate on topic names for `named`.

    A valid topic name matches only itself, so that its dots match nothing else; everything else is a pattern. Raises
    ConfigurationError if that is not a valid regular expression.
    """
    return named.__eq__ if _A_NAME.fullmatch(named) else Selection(named).matches


def _why_unknown(found: KnownTopics, named: str) -> str:
    """Return why no known partition matches the topic."""
    shown = "'tiered-storage topics list' shows the known topics"
    if _A_NAME.fullmatch(named) is None:
        return f"no topic in log.dirs or in the remote log matches the regular expression {named}; {shown}"
    for one in found.damaged:
        if one.topic == named:
            return f"topic {named} cannot be changed, since its id is unknown: {one.reason}"
    return f"topic {named} is neither in log.dirs nor in the remote log; {shown}"


def _with_property(topic: Topic, name: str, value: str) -> Topic:
    return replace(topic, properties={**topic.properties, name: value})


def _refuse_to_enable(remote_log: RemoteLogManager, topic: TopicIdPartition) -> None:
    states = remote_log.segments.partition_states()
    incarnation = (topic.cluster_id, topic.topic_id)
    if any(
        state.delete_state is not None and (each.cluster_id, each.topic_id) == incarnation
        for each, state in states.items()
    ):
        raise ConfigurationError(
            f"topic {topic.topic} ({topic.topic_id}): all remote data of this incarnation are deleted, or will be: it "
            "takes no more segments"
        )
    for one in remote_log.source.names():
        if not isinstance(one, NamedPartition) or one.topic_id_partition.topic_id != topic.topic_id:
            continue
        refuse_log(one)
        try:
            log = remote_log.source.partition(one.topic_id_partition)
        except (TieredStorageError, OSError):
            # The next plan reports what hinders it.
            continue
        if log is not None:
            refuse_log(log)


def _refuse_decisions(names: Iterable[str]) -> None:
    """Raise ConfigurationError for a decision that has its own command; as a property it would have no effect."""
    for name in names:
        stands_for = {older.target for older in TopicSettings.older_names if older.name == name} | {name}
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
