"""Which partitions a service gets, when nobody else assigns them: those that the cluster or the log directories name.

A partition belongs to a service if its topic is tiered or has remote segments. A service that stands beside one broker
leads what that broker leads, and follows what else it has a replica of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import PartitionDeleteState, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.service.schedule import PartitionSchedule, Role
from tiered_storage.remote_log.source.partition_log import UnreadablePartition
from tiered_storage.remote_log.source.segment_source import ShowsReplicas
from tiered_storage.remote_log.tiering_policy import Decisions


class Assignments:
    """Assigns partitions of `selection` to `schedule`, as the source and the metadata of `context` show them."""

    def __init__(
        self, context: RemoteLogContext, schedule: PartitionSchedule, selection: Selection, broker: int | None = None
    ) -> None:
        """Assign nothing yet. `broker` is the id of the broker that the service stands beside; None: it leads all.

        Raises ConfigurationError for a `broker` of a source that shows no leaders.
        """
        if broker is not None and not isinstance(context.source, ShowsReplicas):
            raise ConfigurationError(
                f"a service beside broker {broker} needs a running cluster, which names the leaders: set "
                "bootstrap.servers, or leave the broker out"
            )
        self._context = context
        self._schedule = schedule
        self._selection = selection
        self._broker = broker

    def refresh(self) -> None:
        """Look now; assign what is new, and remove what is gone. Raises what the source and the metadata raise.

        A partition that the source cannot read now stays as it is.
        """
        wanted, unreadable = self._wanted()
        for partition, role in wanted.items():
            self._schedule.assign(partition, role)
        for partition in self._schedule.partitions():
            if partition not in wanted and str(partition) not in unreadable:
                self._schedule.remove(partition)

    @property
    def notices(self) -> Sequence[str]:
        """What a person should know of the source as a whole, as of the last look."""
        return self._context.source.notices

    def _wanted(self) -> tuple[dict[TopicIdPartition, Role], set[str]]:
        context = self._context
        states = context.segments.partition_states()
        decisions = Decisions(context.topics.list(), context.settings)
        named: set[TopicIdPartition] = set()
        unreadable: set[str] = set()
        for each in context.source.names() if context.source.is_configured else ():
            if isinstance(each, UnreadablePartition):
                unreadable.add(each.partition)
            elif not each.is_internal:
                partition = each.topic_id_partition
                if partition in states or decisions.topic(partition).remote_storage_enable:
                    named.add(partition)
        remote = {each for each, state in states.items() if state.delete_state is not PartitionDeleteState.FINISHED}
        roles = self._roles({*named, *remote})
        return {
            each: role for each, role in roles.items() if self._selection.matches(each.topic, each.partition)
        }, unreadable

    def _roles(self, partitions: set[TopicIdPartition]) -> Mapping[TopicIdPartition, Role]:
        source = self._context.source
        if self._broker is None or not isinstance(source, ShowsReplicas):
            return dict.fromkeys(partitions, Role.LEADER)
        shown = {each: replicas for each, replicas in source.replicas().items() if each in partitions}
        return {
            each: Role.LEADER if replicas.leader == self._broker else Role.FOLLOWER
            for each, replicas in shown.items()
            if self._broker in {replicas.leader, *replicas.brokers}
        }
