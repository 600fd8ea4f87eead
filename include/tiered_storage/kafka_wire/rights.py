"""The rights that a login has on a cluster and on topics, as brokers report them.

Any broker answers: DescribeCluster for the cluster, and Metadata for topics.

Source: KIP-430, KIP-700; released Kafka's AclOperation.java, DescribeClusterResponse.json and MetadataResponse.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_CLUSTER
from tiered_storage.kafka_wire.connections.error_codes import NONE, error_name, is_retriable
from tiered_storage.kafka_wire.connections.frames import request


class Right(IntEnum):
    """A right on a resource, with Kafka's number of the operation; only those that Remote Log looks for."""

    READ = 3
    DELETE = 6
    DESCRIBE = 8


@dataclass(frozen=True, slots=True)
class ClusterRights:
    """The rights of the login on the cluster with this id; None: the broker gives no id."""

    cluster_id: str | None
    rights: frozenset[Right]


def rights_of(operations: int) -> frozenset[Right]:
    """Return the rights in a bit field of `operations`; none if it is negative, by which brokers mean unknown."""
    return frozenset(each for each in Right if operations >> each & 1) if operations > 0 else frozenset()


def describe_cluster_request(version: int) -> Any:
    """Return kio's request for the rights on the cluster; without Describe on it, brokers report none."""
    return request(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True, include_fenced_brokers=False)


def read_cluster_rights(answer: Any) -> ClusterRights:
    """Return the rights in kio's `answer`.

    Raises ClusterUnreachableError for an error that passes, and ClusterRefusedError for any other.
    """
    code = int(answer.error_code)
    if code != NONE:
        kind = ClusterUnreachableError if is_retriable(code) else ClusterRefusedError
        raise kind(f"the broker cannot describe its cluster: {error_name(code)} ({code})")
    return ClusterRights(answer.cluster_id or None, rights_of(int(answer.cluster_authorized_operations)))
