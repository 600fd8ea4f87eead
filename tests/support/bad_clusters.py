"""Ways to name a cluster wrongly, at a real broker that asks for logins, and what the errors must name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from servers.guarded_kafka import UNREACHABLE, GuardedKafka
from tiered_storage.kafka_wire.brokers import Brokers
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.remote_log.source import cluster_trim

PATIENCE_SECONDS = 1.0
"""Enough where no broker answers what is asked; SLOW_SECONDS where some do."""
SLOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A client of a listener with some properties changed, and the words that its errors must have.

    {folder} stands for the folder of the broker's certificates.
    """

    name: str
    listener: str
    named: tuple[str, ...]
    changed: Mapping[str, str] = field(default_factory=dict)

    def properties(self, broker: GuardedKafka) -> dict[str, str]:
        """Return the client's properties."""
        changed = {name: value.format(folder=broker.folder) for name, value in self.changed.items()}
        return broker.properties(self.listener) | changed

    def words(self, broker: GuardedKafka) -> list[str]:
        """Return what an error must name: settings, and the address that was tried."""
        return [*self.named, self.changed.get("bootstrap.servers", broker.kafka.address(self.listener))]


NOBODY = "127.0.0.1:1"
FAULTS = (
    Fault("no such host", "SASLTLS", ("bootstrap.servers",), {"bootstrap.servers": "no-such-host.invalid:9092"}),
    Fault("nobody listens", "SASLTLS", ("bootstrap.servers",), {"bootstrap.servers": NOBODY}),
    Fault("wrong password", "SASLTLS", ("sasl.username", "sasl.password"), {"sasl.password": "guess"}),
    Fault("another authority", "SASLTLS", ("ssl.ca.location",), {"ssl.ca.location": "{folder}/other-ca.pem"}),
    Fault("no TLS at a TLS listener", "SASLTLS", ("security.protocol",), {"security.protocol": "sasl_plaintext"}),
    Fault("TLS at a listener without", "SASL", ("security.protocol",), {"security.protocol": "sasl_ssl"}),
    Fault("no login at a SASL listener", "SASL", ("security.protocol",), {"security.protocol": "plaintext"}),
    Fault("login at a listener without", "AWAY", ("security.protocol",), {
        "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "guess"
    }),
)  # fmt: skip
AWAY = Fault("unreachable address", "AWAY", ("advertised.listeners", UNREACHABLE))


def without_patience(monkeypatch: pytest.MonkeyPatch, most: float = PATIENCE_SECONDS) -> None:
    """Let calls to a cluster in this process give up after `most` seconds, where a run waits for minutes."""
    deadline = Brokers.deadline

    def soon(brokers: Brokers, seconds: float) -> Deadline:
        return deadline(brokers, min(seconds, most))

    monkeypatch.setattr(Brokers, "deadline", soon)
    monkeypatch.setattr(cluster_trim, "_SECONDS", most)
