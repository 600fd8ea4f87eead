"""The requests of Kafka's protocol that this client sends, and the versions that it shares with a broker.

OffsetSpec, which ListOffsets takes, stands here because readers of the remote tier use it without kio.

Source: KIP-35; KIP-511; KIP-405, KIP-734, KIP-1005 and KIP-1023 (offsets by name); the protocol guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tiered_storage.errors import ClusterRefusedError, MalformedAnswerError


@dataclass(frozen=True, slots=True)
class Api:
    """One request of the protocol, and the versions of it that this client uses, `oldest` to `latest` inclusive."""

    key: int
    name: str
    oldest: int
    latest: int

    def __str__(self) -> str:
        return self.name


FETCH = Api(1, "Fetch", 11, 18)
LIST_OFFSETS = Api(2, "ListOffsets", 5, 11)
METADATA = Api(3, "Metadata", 9, 13)
OFFSET_FETCH = Api(9, "OffsetFetch", 7, 7)
LIST_GROUPS = Api(16, "ListGroups", 3, 5)
SASL_HANDSHAKE = Api(17, "SaslHandshake", 1, 1)
API_VERSIONS = Api(18, "ApiVersions", 0, 3)
DELETE_RECORDS = Api(21, "DeleteRecords", 1, 2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 3, 4)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 1, 4)
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 1, 2)
DESCRIBE_QUORUM = Api(55, "DescribeQuorum", 1, 2)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 2)

APIS = (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    LIST_GROUPS,
    SASL_HANDSHAKE,
    API_VERSIONS,
    DELETE_RECORDS,
    OFFSET_FOR_LEADER_EPOCH,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    SASL_AUTHENTICATE,
    DESCRIBE_QUORUM,
    DESCRIBE_CLUSTER,
)


class OffsetSpec(IntEnum):
    """Offsets by name, as ListOffsets takes them instead of a timestamp."""

    EARLIEST = -2
    """The first readable offset, in either tier."""
    LATEST = -1
    """The offset after the last readable one at the isolation level; its epoch is that of the last leader."""
    MAX_TIMESTAMP = -3
    """The first record with the largest timestamp; no result if a read_committed reader cannot see that record yet."""
    EARLIEST_LOCAL = -4
    """The first offset that is local."""
    NEXT_LOCAL = EARLIEST_LOCAL
    """Its name in KIP-405's drafts, which number it -3."""
    LATEST_TIERED = -5
    """The last offset that the remote tier has (inclusive)."""
    EARLIEST_PENDING_UPLOAD = -6
    """The first offset that the remote tier does not have yet (KIP-1023)."""


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The versions that the broker at `address` supports, inclusive, by API key."""

    address: str
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, address: str, answer: Any) -> ApiVersions:
        """Return what kio's ApiVersionsResponse `answer` lists. Raises MalformedAnswerError if it has no list."""
        if answer.api_keys is None:
            raise MalformedAnswerError(f"{address}: ApiVersions lists nothing")
        return cls(address, {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys})

    def choose(self, api: Api) -> int:
        """Return the latest version of `api` that both sides know.

        Raises ClusterRefusedError, which names both ranges, if there is none.
        """
        if api.key not in self.ranges:
            raise ClusterRefusedError(
                f"{self.address} does not offer {api}; {_advice(api)}",
            )
        lowest, highest = self.ranges[api.key]
        chosen = min(highest, api.latest)
        if chosen < max(lowest, api.oldest):
            raise ClusterRefusedError(
                f"{self.address} offers {api} in versions {lowest} to {highest}, this client {api.oldest} to "
                f"{api.latest}: brokers of Kafka 2.8 and later are supported"
            )
        return chosen


def _advice(api: Api) -> str:
    if api in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
        return "the listener takes no SASL login: set security.protocol to plaintext or ssl, or use its SASL listener"
    return "the address in bootstrap.servers must be that of a broker, not of a controller"
