"""Show and change what Remote Log may do with each topic. It copies and deletes nothing that you did not enable here or
in the settings file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from tiered_storage.cli.common.output import Output, show_duration, show_size
from tiered_storage.cli.common.session import (
    ConfigOption,
    JsonOption,
    opened,
    past_retention_documents,
    say_past_retention,
)
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.copy.plan import Finding
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.segment_source import NamedPartition, UnreadablePartition
from tiered_storage.remote_log.tiering_policy import (
    decided_topic,
    effective,
    refuse_compacted,
    refuse_log,
    withholds_rights,
)
from tiered_storage.settings.topics import DECISIONS, TopicSettings


class Tier(StrEnum):
    """A tier in which deletion may be allowed."""

    LOCAL = "local"
    REMOTE = "remote"


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
_COPY_DISABLE = "remote.log.copy.disable"

_COLUMNS = (
    "topic", "topic id", "partitions", "remote.storage.enable", "paused", "local deletion allowed",
    "remote deletion allowed", "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes",
    "problem",
)  # fmt: skip


_SHORT_COLUMNS = (
    "topic", "partitions", "copied", "deleted from", "kept locally", "kept in all", "topic id", "problem",
)  # fmt: skip


@app.command("list")
def list_topics(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every topic of the log directories and of the remote log, with its settings."""
    output = Output(as_json)
    with opened(config, output, only_looks=True) as remote_log:
        found = _found(remote_log)
        lives = found.lives(lambda _: True)
        rows = [_row(remote_log, life, found) for life in lives]
        withheld = [life for life in lives if _is_withheld(remote_log, life)]
    _show("Topics", rows, output)
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
    _change(topic, lambda _, known: _with_property(known, _COPY_DISABLE, "true"), config, as_json)


@app.command()
def resume(topic: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Copy a paused topic's closed segments again."""
    _change(topic, lambda _, known: _with_property(known, _COPY_DISABLE, "false"), config, as_json)


@app.command("allow-deletion")
def allow_deletion(
    topic: NameArgument, only: OnlyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let retention delete from the topic: local segments that are remote too, and everything past total retention.

    Without --only, in both tiers, by the limits in the table (log.retention.* if the topic has none of its own). Once a
    broker starts on a trimmed directory, its own readers no longer get those offsets: allow local deletion only if they
    read through Remote Log. Before anything is deleted, the command shows how much is already past those limits.
    """
    _change(topic, lambda _, known: _with_right(known, only, True), config, as_json, tells_past_retention=True)


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


def _show(title: str, rows: Sequence[tuple[object, ...]], output: Output, **extra: object) -> None:
    """Show rows of _COLUMNS; for people, in fewer columns."""
    if output.as_json:
        output.rows(title, _COLUMNS, rows, **extra)
        return
    output.rows(title, _SHORT_COLUMNS, [_in_short(dict(zip(_COLUMNS, row, strict=True))) for row in rows])


def _in_short(row: Mapping[str, Any]) -> tuple[object, ...]:
    tiers = [tier.value for tier in Tier if row[f"{tier.value} deletion allowed"]]
    copied = ("paused" if row["paused"] else "yes") if row["remote.storage.enable"] else "no"
    kept = (
        _limit(row["local.retention.ms"], row["local.retention.bytes"]),
        _limit(row["retention.ms"], row["retention.bytes"]),
    )
    deleted = "both tiers" if len(tiers) == len(Tier) else "".join(tiers) or "no"
    return row["topic"], row["partitions"], copied, deleted, *kept, row["topic id"], row["problem"]


def _limit(ms: int | None, size: int | None) -> str | None:
    """Format the limits of a retention for people; None if unknown."""
    if ms is None or size is None:
        return None
    limits = [show_duration(ms)] if ms >= 0 else []
    return " or ".join([*limits, *([show_size(size)] if size >= 0 else [])]) or "no limit"


def _change(
    named: str,
    change: Callable[[RemoteLogManager, Topic], Topic],
    config: Path | None,
    as_json: bool,
    check: Callable[[RemoteLogManager, TopicIdPartition], None] = lambda *_: None,
    *,
    tells_past_retention: bool = False,
) -> None:
    """Change every topic that `named` matches, and show them all; a refused topic leaves the others changed."""
    output = Output(as_json)
    with opened(config, output, create=True) as remote_log:
        found = _found(remote_log)
        chosen = {name: list(lives) for name, lives in groupby(found.lives(_naming(named)), lambda one: one.topic)}
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
        shown = [life for of_name in chosen.values() for life in of_name]
        rows = [_row(remote_log, life, found) for life in shown]
        past = [one for life in shown for one in found.of(life)] if tells_past_retention else []
        told = remote_log.deletions.past_retention(past) if past else ()
    more = {"past_retention": past_retention_documents(told)} if tells_past_retention else {}
    _show("Now", rows, output, troubles=[{"message": each} for each in refused], **more)
    say_past_retention(told, output)
    for each in refused:
        output.say(f"error: {each}")
    if refused:
        raise typer.Exit(1)


def _change_topic(
    remote_log: RemoteLogManager,
    lives: Sequence[TopicIdPartition],
    change: Callable[[RemoteLogManager, Topic], Topic],
    check: Callable[[RemoteLogManager, TopicIdPartition], None],
) -> None:
    # Start with every incarnation: a decision on one removes the file's rights from the others.
    starts = [_decided(remote_log, life) for life in lives]
    for life, start in zip(lives, starts, strict=True):
        check(remote_log, life)

        def changed(known: Topic | None, start: Topic = start) -> Topic:
            return change(remote_log, known or start)

        remote_log.topics.change(life.cluster_id, life.topic_id, changed)


def _naming(named: str) -> Callable[[str], bool]:
    """Return a predicate on topic names for `named`.

    A valid topic name matches only itself, so that its dots match nothing else; everything else is a pattern. Raises
    ConfigurationError if that is not a valid regular expression.
    """
    return named.__eq__ if _A_NAME.fullmatch(named) else Selection(named).matches


def _why_unknown(found: _Found, named: str) -> str:
    """Return why no known partition matches the topic."""
    shown = "'tiered-storage topics list' shows the known topics"
    if _A_NAME.fullmatch(named) is None:
        return f"no topic in log.dirs or in the remote log matches the regular expression {named}; {shown}"
    for one in found.damaged:
        if one.topic == named:
            return f"topic {named} cannot be changed, since its id is unknown: {one.reason}"
    return f"topic {named} is neither in log.dirs nor in the remote log; {shown}"


@dataclass(frozen=True, slots=True)
class _Found:
    """Every local or remote partition, except Kafka's internal topics, and those whose topic ids are unknown."""

    partitions: Sequence[TopicIdPartition]
    problems: Mapping[TopicIdPartition, str]
    """Why a copy leaves partitions out, as far as known without looking into their logs."""
    damaged: Sequence[UnreadablePartition]

    def lives(self, is_meant: Callable[[str], bool]) -> list[TopicIdPartition]:
        """Return the first partition of each incarnation of the matching topics, by name."""
        first = {_life(one): one for one in reversed(self.partitions) if is_meant(one.topic)}
        return sorted(first.values(), key=lambda one: (one.topic, one))

    def of(self, life: TopicIdPartition) -> list[TopicIdPartition]:
        """Return the partitions of one incarnation of a topic."""
        return [one for one in self.partitions if _life(one) == _life(life)]

    def problem_of(self, life: TopicIdPartition) -> str | None:
        """Return how many of its partitions are left out, and why the first one is."""
        of_life = self.of(life)
        left_out = [one for one in of_life if one in self.problems]
        if not left_out:
            return None
        return f"{len(left_out)} of {len(of_life)} partitions are left out: {self.problems[left_out[0]]}"


def _found(remote_log: RemoteLogManager) -> _Found:
    names = list(remote_log.source.names())
    local = {one.topic_id_partition: one for one in names if isinstance(one, NamedPartition) and not one.is_internal}
    return _Found(
        sorted({*local, *remote_log.segments.list_partitions()}),
        {partition: one.problem for partition, one in local.items() if one.problem is not None},
        [one for one in names if isinstance(one, UnreadablePartition) and not one.is_internal],
    )


def _life(partition: TopicIdPartition) -> tuple[str, str]:
    return partition.cluster_id, partition.topic_id


def _row(remote_log: RemoteLogManager, life: TopicIdPartition, found: _Found) -> tuple[object, ...]:
    topic = _decided(remote_log, life)
    paused = topic.properties.get(_COPY_DISABLE) == "true"
    rights = (topic.local_deletion_allowed, topic.remote_deletion_allowed)
    state = (life.topic, life.topic_id, len(found.of(life)), topic.remote_storage_enable, paused, *rights)
    try:
        resolved = effective(topic, remote_log.settings)
        if topic.remote_storage_enable:
            refuse_compacted(topic.name, resolved)
    except TieredStorageError as error:
        return (*state, None, None, None, None, str(error))
    limits = (
        resolved.retention_ms, resolved.retention_bytes, resolved.local_retention_ms, resolved.local_retention_bytes
    )  # fmt: skip
    return (*state, *limits, found.problem_of(life))


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
