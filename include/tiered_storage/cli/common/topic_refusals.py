"""`tiered-storage topics enable`: the topics that it refuses, and those that a pattern then leaves disabled."""

from __future__ import annotations

from collections.abc import Sequence

from tiered_storage.cli.common.topic_table import KnownTopics
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.enabling.retention_margin import why_margin_is_short, write_rate
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog
from tiered_storage.remote_log.tiering_policy import effective, refuse_log


class ShortMarginError(ConfigurationError):
    """A topic whose brokers delete records too soon for it to be enabled."""


def refuse_to_enable(context: RemoteLogContext, topic: TopicIdPartition, found: KnownTopics) -> None:
    """Raise ConfigurationError if the incarnation `topic` is deleted, or its log unfit; ShortMarginError."""
    states = context.segments.partition_states()
    incarnation = (topic.cluster_id, topic.topic_id)
    if any(
        state.delete_state is not None and (each.cluster_id, each.topic_id) == incarnation
        for each, state in states.items()
    ):
        raise ConfigurationError(
            f"topic {topic.topic} ({topic.topic_id}): all remote data of this incarnation are deleted, or will be: it "
            "takes no more segments"
        )
    for one in found.local_of(topic):
        refuse_log(one)
        # The limit by age needs no look: it also refuses a topic whose log cannot be read.
        _refuse_short_margin(context, one, None)
        # Read the log only if retention.bytes limits the topic: the check then needs its write rate.
        if one.configs is None or one.configs.retention_bytes >= 0:
            try:
                log = context.source.partition(one.topic_id_partition)
            except (TieredStorageError, OSError):
                # The next plan reports what hinders it.
                continue
            if log is None:
                continue
            refuse_log(log)
            _refuse_short_margin(context, one, log)


def _refuse_short_margin(context: RemoteLogContext, named: NamedPartition, log: PartitionLog | None) -> None:
    """Raise ConfigurationError if the brokers delete the topic's records too soon, as far as they are known."""
    if named.configs is None:
        return
    partition = named.topic_id_partition
    resolved = effective(context.decided_topic(partition), context.settings, named.configs)
    rate = 0.0 if log is None or log.unsegmented is None else write_rate(log, log.unsegmented, context.clock())
    least = context.settings.enable_min_retention_margin_ms
    why = why_margin_is_short(named.configs, resolved, least, rate)
    if why is not None:
        raise ShortMarginError(f"topic {partition.topic} was not enabled: {why}")


def keep_off(context: RemoteLogContext, incarnations: Sequence[TopicIdPartition], found: KnownTopics) -> list[str]:
    """Record the local `incarnations` without a decision as disabled, so that no pattern enables them; return notes.

    One that is enabled already, by an earlier pattern or the settings file, stays enabled.
    """
    notes = []
    for one in incarnations:
        start = context.decided_topic(one)
        if start.remote_storage_enable or not found.local_of(one):
            continue

        def unless_decided(known: Topic | None, start: Topic = start) -> Topic:
            return known or start

        context.topics.change(one.cluster_id, one.topic_id, unless_decided)
        notes.append(
            f"topic {one.topic} stays disabled, although the pattern matches it: once its brokers keep records longer, "
            f"'tiered-storage topics enable {one.topic}' enables it"
        )
    return notes
