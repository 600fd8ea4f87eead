"""Versions of requests: the latest that this client and a broker share.

Source: KIP-35; KIP-511.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiered_storage.errors import ClusterRefusedError
from tiered_storage.kafka_wire.frames import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api, elements, request

CLIENT_SOFTWARE = "remote-log"
CLIENT_VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The versions that the broker at `address` supports, inclusive, by API key."""

    address: str
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, address: str, answer: Any) -> ApiVersions:
        """Return what kio's ApiVersionsResponse `answer` lists."""
        return cls(address, {each.api_key: (each.min_version, each.max_version) for each in elements(answer.api_keys)})

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


def versions_request(version: int) -> Any:
    """Return the ApiVersions request of a version that is 0 or 3."""
    return request(API_VERSIONS, version, client_software_name=CLIENT_SOFTWARE, client_software_version=CLIENT_VERSION)


def _advice(api: Api) -> str:
    if api in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
        return "the listener takes no SASL login: set security.protocol to plaintext or ssl, or use its SASL listener"
    return "the address in bootstrap.servers must be that of a broker, not of a controller"
