"""What a copy run's look at all partitions shows of their topics, besides what is due.

Alarms are of tiered topics whose brokers may delete records before they are copied, or have lowered limits by which
remote records will expire; notices are of topics that were deleted, that a pattern leaves alone, or whose names the
settings file or the user may confuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from tiered_storage.kafka_log.files.topic_partition import described_near, near_names, nearly_same
from tiered_storage.kafka_wire.connections.error_codes import FOR_EVERY_STEP, grant
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.enabling.absent_topics import ShownTopics
from tiered_storage.remote_log.enabling.broker_limits import lowered_findings
from tiered_storage.remote_log.enabling.retention_margin import why_margin_is_short, write_rate
from tiered_storage.remote_log.model import Finding, PartitionState, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.opening import CLUSTER
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog, UnreadablePartition, name_of
from tiered_storage.remote_log.tiering_policy import TieringPolicy

if TYPE_CHECKING:
    from tiered_storage.remote_log.context import RemoteLogContext


class TopicWatch:
    """Collects findings during one pass over the partitions of the source of `context`."""

    def __init__(self, context: RemoteLogContext) -> None:
        self._context = context
        self._names: set[str] = set()
        self._tiered: set[str] = set()
        self._shown = ShownTopics(shows_all=not context.source.shows_segments)
        self._left_alone: dict[str, Finding] = {}
        self._alarms: dict[str, Finding] = {}
        self._lowered: dict[str, tuple[Finding, ...]] = {}

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The topics whose brokers keep records too briefly, one finding each, and the limits that they lowered."""
        return (*self._alarms.values(), *chain.from_iterable(self._lowered.values()))

    def see(self, log: PartitionLog | NamedPartition | UnreadablePartition) -> None:
        """Take note of a partition, of whichever topic."""
        self._names.add(name_of(log)[0])
        self._shown.add(log)

    def leave_alone(self, topic: str, why: str | None) -> None:
        """Take note of a topic that matches a pattern and is not tiered, if there is a reason."""
        if why is not None:
            self._left_alone.setdefault(topic, Finding(topic, f"left alone: {why}"))

    def compare_retention(self, log: PartitionLog, decision: TieringPolicy) -> None:
        """Look whether the brokers keep the records of a tiered partition for long enough, as far as that is known.

        Look also whether they lowered a limit by which records are deleted. Raises SourceClusterError.
        """
        name, settings = log.topic_id_partition.topic, self._context.settings
        self._tiered.add(name)
        if name not in self._lowered:
            self._lowered[name] = tuple(lowered_findings(decision, settings, log.configs))
        if log.configs is None or name in self._alarms:
            return
        rate = 0.0
        if log.unsegmented is not None and log.configs.retention_bytes >= 0:
            rate = write_rate(log, log.unsegmented, self._context.clock())
        why = why_margin_is_short(log.configs, decision.settings, settings.enable_min_retention_margin_ms, rate)
        if why is not None:
            self._alarms[name] = Finding(name, why)

    def notices(self, scope: Selection, states: Mapping[TopicIdPartition, PartitionState]) -> Iterator[Finding]:
        """Yield the findings for the user; of topics that were deleted only those in `scope`."""
        yield from self._left_alone.values()
        yield from self._absent(scope, states)
        for name, near in scope.near_names(self._names).items():
            yield Finding(name, f"the local logs have no such topic: {described_near(near)}")
        yield from self._begun_beside_near_names()
        expected = self._expected(scope)
        for name in sorted(self._context.settings.topics.keys() - self._names):
            if near := near_names(name, self._names):
                yield Finding(name, f"the settings file names it, and no such topic is there: {described_near(near)}")
            elif name in expected:
                right = grant("Describe", f"--topic {name}", FOR_EVERY_STEP)
                yield Finding(
                    name, f"the settings file tiers it, and the cluster shows no such topic: if it is there, {right}"
                )

    def _begun_beside_near_names(self) -> Iterator[Finding]:
        """Yield the tiered topics of which nothing is remote yet, and whose names are nearly those of others."""
        groups = [group for group in nearly_same(self._names) if not self._tiered.isdisjoint(group)]
        if not groups:
            return
        begun = {each.topic for each in self._context.segments.list_partitions()}
        for group in groups:
            for name in group:
                if name in self._tiered and name not in begun:
                    others = [each for each in group if each != name]
                    check = "nothing of it is remote yet, so check that the right topic is enabled"
                    yield Finding(name, f"{described_near(others)}: {check}")

    def _expected(self, scope: Selection) -> set[str]:
        """Return the topics in `scope` that the settings file tiers on a cluster, and that nothing is remote of yet."""
        settings = self._context.settings
        if not CLUSTER.is_named(settings):
            return set()
        tiered = {name for name, topic in settings.topics.items() if topic.remote_storage_enable}
        chosen = {name for name in tiered if scope.matches(name, 0)}
        return chosen - {each.topic for each in self._context.segments.list_partitions()}

    def _absent(self, scope: Selection, states: Mapping[TopicIdPartition, PartitionState]) -> Iterator[Finding]:
        context = self._context
        if not CLUSTER.is_named(context.settings):
            return
        kept = [
            each
            for each in context.segments.list_partitions()
            if scope.matches(each.topic, each.partition) and states.get(each, PartitionState()).delete_state is None
        ]
        for each in self._shown.absent(kept):
            topic = context.decided_topic(each.first)
            holds = any(finished(context.segments.list_remote_log_segments(one)) for one in each.partitions)
            if topic.remote_storage_enable and holds:
                yield each.finding(topic, context.settings.remote_log_replaced_topic_grace_ms)
