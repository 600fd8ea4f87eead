"""List the requests that the gateway passes on: clients' requests, in the versions whose answers the gateway knows.

A later API or version might carry broker addresses or records in a field that the gateway does not read. Share groups
are left out because their answers have addresses between records, DescribeQuorum and the APIs of raft voters because
they are for brokers.

Source: KIP-35; the schemas of released Kafka 4.3.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

from tiered_storage.gateway.deletions.client_deletions import DELETE_RECORDS, DELETE_TOPICS
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import UNSUPPORTED_VERSION
from tiered_storage.kafka_wire.connections.frames import elements

PRODUCE: Final = Api(0, "Produce", 3, 13)
FETCH: Final = Api(1, "Fetch", 4, 18)
LIST_OFFSETS: Final = Api(2, "ListOffsets", 1, 11)
METADATA: Final = Api(3, "Metadata", 0, 13)
FIND_COORDINATOR: Final = Api(10, "FindCoordinator", 0, 6)
API_VERSIONS: Final = Api(18, "ApiVersions", 0, 4)
SASL_HANDSHAKE: Final = Api(17, "SaslHandshake", 1, 1)
"""Version 0 is left out: after it, the client sends SASL bytes that are not requests."""
SASL_AUTHENTICATE: Final = Api(36, "SaslAuthenticate", 0, 2)
OFFSET_FOR_LEADER_EPOCH: Final = Api(23, "OffsetForLeaderEpoch", 2, 4)
DESCRIBE_CLUSTER: Final = Api(60, "DescribeCluster", 0, 2)
_REFUSED: Final = struct.Struct(">ihihhh")
"""A correlation id, an error, and an array of one API key with its oldest and its latest version."""

_PASSED: Final = (
    Api(8, "OffsetCommit", 2, 10),
    Api(9, "OffsetFetch", 1, 10),
    Api(11, "JoinGroup", 2, 9),
    Api(12, "Heartbeat", 0, 4),
    Api(13, "LeaveGroup", 0, 5),
    Api(14, "SyncGroup", 0, 5),
    Api(15, "DescribeGroups", 0, 6),
    Api(16, "ListGroups", 0, 5),
    Api(19, "CreateTopics", 2, 7),
    Api(22, "InitProducerId", 0, 6),
    Api(24, "AddPartitionsToTxn", 0, 5),
    Api(25, "AddOffsetsToTxn", 0, 4),
    Api(26, "EndTxn", 0, 5),
    Api(28, "TxnOffsetCommit", 0, 5),
    Api(29, "DescribeAcls", 1, 3),
    Api(30, "CreateAcls", 1, 3),
    Api(31, "DeleteAcls", 1, 3),
    Api(32, "DescribeConfigs", 1, 4),
    Api(33, "AlterConfigs", 0, 2),
    Api(35, "DescribeLogDirs", 1, 5),
    Api(37, "CreatePartitions", 0, 3),
    Api(42, "DeleteGroups", 0, 2),
    Api(43, "ElectLeaders", 0, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1),
    Api(45, "AlterPartitionReassignments", 0, 1),
    Api(46, "ListPartitionReassignments", 0, 0),
    Api(47, "OffsetDelete", 0, 0),
    Api(48, "DescribeClientQuotas", 0, 1),
    Api(49, "AlterClientQuotas", 0, 1),
    Api(50, "DescribeUserScramCredentials", 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0),
    Api(61, "DescribeProducers", 0, 0),
    Api(65, "DescribeTransactions", 0, 0),
    Api(66, "ListTransactions", 0, 2),
    Api(68, "ConsumerGroupHeartbeat", 0, 1),
    Api(69, "ConsumerGroupDescribe", 0, 1),
    Api(71, "GetTelemetrySubscriptions", 0, 0),
    Api(72, "PushTelemetry", 0, 0),
    Api(74, "ListConfigResources", 0, 1),
    Api(75, "DescribeTopicPartitions", 0, 0),
)
"""Passed on and back as they are."""

ALLOWED: Final = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        FIND_COORDINATOR,
        SASL_HANDSHAKE,
        API_VERSIONS,
        SASL_AUTHENTICATE,
        DELETE_TOPICS,
        DELETE_RECORDS,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CLUSTER,
        *_PASSED,
    )
}
"""The allowed APIs by their keys."""


def capped_versions(answer: Any) -> Any:
    """Return `answer`, kio's answer to ApiVersions, with only the versions that both broker and gateway serve."""
    kept = []
    for each in elements(answer.api_keys):
        api = ALLOWED.get(int(each.api_key))
        if api is None:
            continue
        oldest, latest = max(each.min_version, api.oldest), min(each.max_version, api.latest)
        if oldest <= latest:
            kept.append(replace(each, min_version=oldest, max_version=latest))
    return replace(answer, api_keys=tuple(kept))


def refused_versions(correlation_id: int) -> bytes:
    """Return the frame that answers an ApiVersions request whose version the gateway does not know.

    The frame is in version 0 and lists only ApiVersions: a client then asks again in a version that it lists.
    """
    body = _REFUSED.pack(
        correlation_id, UNSUPPORTED_VERSION, 1, API_VERSIONS.key, API_VERSIONS.oldest, API_VERSIONS.latest
    )
    return struct.pack(">i", len(body)) + body
