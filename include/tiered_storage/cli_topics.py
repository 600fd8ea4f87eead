"""Show and decide what may be done with each topic. Nothing is copied or deleted that was not switched on here or in
the settings file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli_output import Output
from tiered_storage.cli_session import ConfigOption, JsonOption, opened
from tiered_storage.configuration.topic_properties import DECISIONS
from tiered_storage.errors import ConfigurationError, TieredStorageError, UnsupportedTopicError
from tiered_storage.remote_log.metadata import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.segment_source import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.topic_decision import decided_topic, withholds_rights
from tiered_storage.topic_settings import TopicSettings, effective, refuse_compacted


class Tier(StrEnum):
    """Where something may be deleted."""

    LOCAL = "local"
    REMOTE = "remote"


app = typer.Typer(no_args_is_help=True, help=__doc__)

NameArgument = Annotated[str, typer.Argument(help="The topic's name.")]
PropertiesArgument = Annotated[list[str], typer.Argument(help="Settings such as local.retention.ms=3600000.")]

OnlyOption = Annotated[Tier | None, typer.Option("--only", help="Of this tier only; else of both.")]

DeleteRemoteOption = Annotated[
    bool, typer.Option("--delete-remote", help="All that is remote goes with the next run of expire.")
]

_DELETE_ON_DISABLE = "remote.log.delete.on.disable"
_COPY_DISABLE = "remote.log.copy.disable"

_COLUMNS = (
    "topic", "topic id", "partitions", "remote.storage.enable", "paused", "local deletion allowed",
    "remote deletion allowed", "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes",
    "problem",
)  # fmt: skip


@app.command("list")
def list_topics(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every topic of the log directories and of the remote log, and what holds for it."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        found = _partitions(remote_log)
        lives = {(one.cluster_id, one.topic_id): one for one in found}
        rows = [_row(remote_log, one, found) for one in sorted(lives.values(), key=lambda one: one.topic)]
        withheld = [one for one in lives.values() if _is_withheld(remote_log, one)]
    output.rows("Topics", _COLUMNS, rows)
    for one in withheld:
        output.say(
            f"note: {one.topic} ({one.topic_id}): the settings file lets it be deleted from, but another life of that "
            f"name was decided on since, or the metadata were made anew: 'tiered-storage topics allow-deletion "
            f"{one.topic}' allows it"
        )


@app.command()
def enable(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy the topic's closed segments from now on (remote.storage.enable). A compacted topic is refused.

    An earlier word that what is remote goes with the next disable (remote.log.delete.on.disable) is taken back.
    """

    def change(remote_log: RemoteLogManager, known: Topic) -> Topic:
        kept = {name: value for name, value in known.properties.items() if name != _DELETE_ON_DISABLE}
        wanted = replace(known, remote_storage_enable=True, properties=kept)
        refuse_compacted(topic, effective(wanted, remote_log.settings))
        return wanted

    _change(topic, change, config, as_json, check=_refuse_to_enable)


@app.command()
def disable(
    topic: NameArgument,
    delete_remote: DeleteRemoteOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy nothing more of the topic; what is remote stays and stays readable, unless --delete-remote is given."""

    def change(_: RemoteLogManager, known: Topic) -> Topic:
        if not delete_remote:
            return replace(known, remote_storage_enable=False)
        if not known.remote_deletion_allowed:
            raise ConfigurationError(
                f"topic {topic}: nothing remote of it may be deleted: allow it first by 'tiered-storage topics "
                f"allow-deletion {topic} --only remote'; nothing was changed"
            )
        asked = {**known.properties, _DELETE_ON_DISABLE: "true"}
        return replace(known, remote_storage_enable=False, properties=asked)

    _change(topic, change, config, as_json)


@app.command()
def pause(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy nothing of the topic until it is resumed; what is remote stays readable and keeps its retention."""
    _change(topic, lambda _, known: _with_property(known, _COPY_DISABLE, "true"), config, as_json)


@app.command()
def resume(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy a paused topic's closed segments again."""
    _change(topic, lambda _, known: _with_property(known, _COPY_DISABLE, "false"), config, as_json)


@app.command("allow-deletion")
def allow_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let retention delete from the topic: local segments that are remote, and what is past total retention.

    Both where --only names none of them, by the limits that the table shows (log.retention.* where the topic has none
    of its own). Offsets that are trimmed from a broker's directory are gone for its own readers once it starts: allow
    it only where they read through this library.
    """
    _change(topic, lambda _, known: _with_right(known, only, True), config, as_json)


@app.command("forbid-deletion")
def forbid_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let nothing be deleted from the topic, or nothing of the one tier that --only names."""
    _change(topic, lambda _, known: _with_right(known, only, False), config, as_json)


@app.command("set")
def set_properties(
    topic: NameArgument, properties: PropertiesArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Set properties of the topic, by Kafka's names; an empty value goes back to the default."""
    given = dict(_parsed(text) for text in properties)
    _refuse_decisions(given)

    def change(remote_log: RemoteLogManager, known: Topic) -> Topic:
        merged = {name: value for name, value in {**known.properties, **given}.items() if value}
        TopicSettings.parse(topic, merged)
        wanted = replace(known, properties=merged)
        resolved = effective(wanted, remote_log.settings)
        if wanted.remote_storage_enable:
            refuse_compacted(topic, resolved)
        return wanted

    _change(topic, change, config, as_json)


def _with_right(topic: Topic, only: Tier | None, allowed: bool) -> Topic:
    return replace(
        topic,
        local_deletion_allowed=topic.local_deletion_allowed if only is Tier.REMOTE else allowed,
        remote_deletion_allowed=topic.remote_deletion_allowed if only is Tier.LOCAL else allowed,
    )


def _change(
    name: str,
    change: Callable[[RemoteLogManager, Topic], Topic],
    config: Path | None,
    as_json: bool,
    check: Callable[[RemoteLogManager, TopicIdPartition], None] = lambda *_: None,
) -> None:
    output = Output(as_json)
    with opened(config, output) as remote_log:
        lives = {(found.cluster_id, found.topic_id): found for found in _partitions(remote_log) if found.topic == name}
        if not lives:
            raise ConfigurationError(_why_unknown(remote_log, name))
        # All of them first: the word on one life takes the file's rights from the others.
        starts = [_decided(remote_log, life) for life in lives.values()]
        for life, start in zip(lives.values(), starts, strict=True):
            check(remote_log, life)

            def changed(known: Topic | None, start: Topic = start) -> Topic:
                return change(remote_log, known or start)

            remote_log.topics.change(life.cluster_id, life.topic_id, changed)
        found = _partitions(remote_log)
        rows = [_row(remote_log, life, found) for life in lives.values()]
    output.rows("Now", _COLUMNS, rows)


def _partitions(remote_log: RemoteLogManager) -> list[TopicIdPartition]:
    """Return every partition that is local or remote, internal topics left out."""
    local = [
        log.topic_id_partition
        for log in (remote_log.source.partitions() if remote_log.settings.log_dirs else ())
        if isinstance(log, PartitionLog) and not log.is_internal
    ]
    return sorted({*local, *remote_log.segments.list_partitions()})


def _why_unknown(remote_log: RemoteLogManager, topic: str) -> str:
    """Say why a topic has no partition that can be looked at."""
    for log in remote_log.source.partitions() if remote_log.settings.log_dirs else ():
        if isinstance(log, UnreadablePartition) and log.topic == topic:
            return f"topic {topic} cannot be decided on, since its id is unknown: {log.reason}"
    return f"topic {topic} is neither in log.dirs nor in the remote log; 'tiered-storage topics list' shows what is"


def _row(remote_log: RemoteLogManager, one: TopicIdPartition, found: list[TopicIdPartition]) -> tuple[object, ...]:
    topic = _decided(remote_log, one)
    count = sum((other.cluster_id, other.topic_id) == (one.cluster_id, one.topic_id) for other in found)
    paused = topic.properties.get(_COPY_DISABLE) == "true"
    rights = (topic.local_deletion_allowed, topic.remote_deletion_allowed)
    state = (one.topic, one.topic_id, count, topic.remote_storage_enable, paused, *rights)
    try:
        resolved = effective(topic, remote_log.settings)
        if topic.remote_storage_enable:
            refuse_compacted(topic.name, resolved)
    except TieredStorageError as error:
        return (*state, None, None, None, None, str(error))
    limits = (
        resolved.retention_ms, resolved.retention_bytes, resolved.local_retention_ms, resolved.local_retention_bytes
    )  # fmt: skip
    return (*state, *limits, None)


def _decided(remote_log: RemoteLogManager, life: TopicIdPartition) -> Topic:
    return decided_topic(life.cluster_id, life.topic_id, life.topic, remote_log.topics, remote_log.settings)


def _is_withheld(remote_log: RemoteLogManager, life: TopicIdPartition) -> bool:
    return withholds_rights(life.cluster_id, life.topic_id, life.topic, remote_log.topics, remote_log.settings)


def _with_property(topic: Topic, name: str, value: str) -> Topic:
    return replace(topic, properties={**topic.properties, name: value})


def _refuse_to_enable(remote_log: RemoteLogManager, topic: TopicIdPartition) -> None:
    states = remote_log.segments.partition_states()
    life = (topic.cluster_id, topic.topic_id)
    if any(
        state.delete_state is not None and (each.cluster_id, each.topic_id) == life for each, state in states.items()
    ):
        raise ConfigurationError(
            f"topic {topic.topic} ({topic.topic_id}): everything remote of this life of it is deleted, or will be: it "
            "takes no more segments"
        )
    for log in remote_log.source.partitions() if remote_log.settings.log_dirs else ():
        if isinstance(log, PartitionLog) and log.topic_id_partition.topic_id == topic.topic_id and log.is_compacted:
            raise UnsupportedTopicError(
                f"topic {topic.topic}: the log cleaner has compacted {log.topic_id_partition}: it cannot be tiered"
            )


def _refuse_decisions(names: Iterable[str]) -> None:
    """Raise ConfigurationError for what a person decides by a command of its own; as a property it would do nothing."""
    for name in names:
        stands_for = {older.target for older in TopicSettings.older_names if older.name == name} | {name}
        if stands_for & DECISIONS:
            raise ConfigurationError(
                f"{name} is decided by 'tiered-storage topics enable', 'disable', 'allow-deletion' and "
                "'forbid-deletion', not set as a property"
            )


def _parsed(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"{text!r} is no setting: write it as name=value, such as local.retention.ms=3600000")
    return name.strip(), value.strip()
