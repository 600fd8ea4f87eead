"""Kafka's error codes: name, whether a retry may succeed, whether to ask for the leader again, and what to do.

Source: Kafka's protocol guide; `retriable` is that of released Kafka, by kio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, SourceClusterError
from tiered_storage.kafka_wire.connections.apis import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)

NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
REPLICA_NOT_AVAILABLE = 9
NETWORK_EXCEPTION = 13
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC_EXCEPTION = 17
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_SASL_MECHANISM = 33
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
KAFKA_STORAGE_ERROR = 56
SASL_AUTHENTICATION_FAILED = 58
LISTENER_NOT_FOUND = 72
TOPIC_DELETION_DISABLED = 73
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
OFFSET_NOT_AVAILABLE = 78
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103

MOVED = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION,
        LEADER_NOT_AVAILABLE,
        NOT_LEADER_OR_FOLLOWER,
        REPLICA_NOT_AVAILABLE,
        NETWORK_EXCEPTION,
        NOT_COORDINATOR,
        KAFKA_STORAGE_ERROR,
        LISTENER_NOT_FOUND,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        UNKNOWN_TOPIC_ID,
        INCONSISTENT_TOPIC_ID,
    }
)
"""After these a client asks for the leader again."""

TO_COPY: Final = "to copy"
TO_TRIM: Final = "to trim"
FOR_EVERY_STEP: Final = "to copy, trim, expire, watch and enable"

_RIGHTS = {
    FETCH: ("Read", TO_COPY),
    LIST_OFFSETS: ("Describe", FOR_EVERY_STEP),
    METADATA: ("Describe", FOR_EVERY_STEP),
    OFFSET_FOR_LEADER_EPOCH: ("Describe", FOR_EVERY_STEP),
    OFFSET_FETCH: ("Describe", TO_TRIM),
    DELETE_RECORDS: ("Delete", TO_TRIM),
}
"""The right on a topic that each request needs, as kafka-acls.sh names it, and for which steps."""


def grant(right: str, on: str, step: str) -> str:
    """Return how to grant the missing `right`, which `step` needs; `on` has kafka-acls.sh's options for the
    resource."""
    return f"grant the right {right} ({step}): kafka-acls.sh --add --allow-principal User:... --operation {right} {on}"


_REMEDIES = {
    OFFSET_OUT_OF_RANGE: "ask for the partition's first and last offsets",
    UNKNOWN_TOPIC_OR_PARTITION: "check the topic's name; the topic may be deleted, or the login lack Describe on it",
    LEADER_NOT_AVAILABLE: "no replica leads the partition: check that its brokers run",
    NOT_LEADER_OR_FOLLOWER: "the partition's leader is moving: try again",
    REQUEST_TIMED_OUT: "the broker needs longer than request.timeout.ms: check its load, then raise that",
    REPLICA_NOT_AVAILABLE: "the broker does not have the partition yet: try again",
    NETWORK_EXCEPTION: "check that the broker runs and that this machine can reach it",
    COORDINATOR_LOAD_IN_PROGRESS: "the broker still loads its consumer groups: try again",
    COORDINATOR_NOT_AVAILABLE: "the broker's group coordinator has not started yet: try again",
    NOT_COORDINATOR: "the broker has not begun to load its consumer groups yet: try again",
    GROUP_AUTHORIZATION_FAILED: grant("Describe", "--group '*'", TO_TRIM),
    POLICY_VIOLATION: "cleanup.policy must contain delete for a deletion of records",
    KAFKA_STORAGE_ERROR: "the broker has lost a disk: check its log directories",
    LISTENER_NOT_FOUND: "the leader lacks the listener of bootstrap.servers: correct its listeners",
    FENCED_LEADER_EPOCH: "a later leader has taken over: ask for its epoch, and check the records against it",
    UNKNOWN_LEADER_EPOCH: "the broker does not know that leader epoch yet: try again",
    OFFSET_NOT_AVAILABLE: "a new leader does not know its high watermark yet: try again",
    UNKNOWN_TOPIC_ID: "the topic was deleted, or created again under its name: look its id up",
    INCONSISTENT_TOPIC_ID: "the topic was created again under its name: look its id up",
}


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, such as `NOT_LEADER_OR_FOLLOWER`."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


def is_retriable(code: int) -> bool:
    """Return whether Kafka's clients repeat a request after this error; False for a code that is unknown here."""
    try:
        return ErrorCode(code).retriable
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class PartitionError:
    """What a broker answered for one partition instead of what was asked.

    `reason` is why the connection failed if `code` is NETWORK_EXCEPTION, a code that only clients set.
    """

    topic: str
    partition: int
    api: Api
    code: int
    reason: str = ""

    @property
    def name(self) -> str:
        """Kafka's name of the error."""
        return error_name(self.code)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return is_retriable(self.code)

    @property
    def remedy(self) -> str:
        """What the user can do about it; empty if nothing is known."""
        if self.code == TOPIC_AUTHORIZATION_FAILED:
            right, step = _RIGHTS[self.api]
            return grant(right, f"--topic {self.topic}", step)
        return _REMEDIES.get(self.code, "")

    def __str__(self) -> str:
        parts = (f"{self.api} failed with {self.name} ({self.code})", self.reason, self.remedy)
        return f"{self.topic}-{self.partition}: " + ": ".join(part for part in parts if part)

    def as_exception(self) -> SourceClusterError:
        """Return the error to raise where one partition's failure ends the work."""
        if self.code == NETWORK_EXCEPTION:
            return ClusterUnreachableError(str(self))
        return SourceClusterError(str(self)) if self.retriable else ClusterRefusedError(str(self))
