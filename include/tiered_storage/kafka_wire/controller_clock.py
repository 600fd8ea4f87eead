"""The clock of a cluster's active controller, beside this machine's.

By their clocks brokers stamp records (LogAppendTime) and delete them, and by ours records expire. The active controller
leads the quorum of the metadata log, and answers with its own time for itself; brokers pass the question on to it. No
request of Kafka's protocol shows the clock of another node, which need not agree with it.

Source: KIP-836; DescribeQuorumResponse.json and LeaderState.describeReplicaState of released Kafka.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tiered_storage.clock import as_date
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_QUORUM
from tiered_storage.kafka_wire.connections.error_codes import NONE
from tiered_storage.kafka_wire.connections.frames import elements, entity, request, request_module

_METADATA_LOG: Final = "__cluster_metadata"


REMEDY: Final = "set both clocks by NTP: records that a broker stamps (LogAppendTime) expire too early or too late"


class ControllerClock(NamedTuple):
    """The id of the active controller's node, and what its clock showed (ms since the epoch).

    This machine's showed `before` when it was asked, and `after` once it had answered.
    """

    node: int
    shown: int
    before: int
    after: int

    def why_apart(self, max_skew_ms: int) -> str | None:
        """Return how both clocks differ; None if by `max_skew_ms` (clock.max.skew.ms) at most."""
        if self.before - max_skew_ms <= self.shown <= self.after + max_skew_ms:
            return None
        return (
            f"the clock of node {self.node}, the cluster's active controller, shows {as_date(self.shown)}, and this "
            f"machine's {as_date(self.after)}, more than clock.max.skew.ms ({max_skew_ms}) apart"
        )


def describe_quorum_request(version: int) -> Any:
    """Return kio's request for the replicas of the metadata log; without Describe on the cluster it is refused."""
    module = request_module(DESCRIBE_QUORUM, version)
    log = entity(module.PartitionData, partition_index=0)
    return request(
        DESCRIBE_QUORUM,
        version,
        topics=(entity(module.TopicData, topic_name=_METADATA_LOG, partitions=(log,)),),
    )


def read_controller_clock(answer: Any) -> tuple[int, int] | None:
    """Return node and time (ms) in kio's `answer`; None if it shows none.

    It shows none to a login without the right, and while the controller changes: the next run asks again.
    """
    logs = [log for topic in elements(answer.topics) for log in elements(topic.partitions)]
    if any(int(each.error_code) != NONE for each in (answer, *logs)):
        return None
    for log in logs:
        for replica in elements(log.current_voters):
            if replica.replica_id == log.leader_id and replica.last_fetch_timestamp > 0:
                return int(replica.replica_id), int(replica.last_fetch_timestamp)
    return None
