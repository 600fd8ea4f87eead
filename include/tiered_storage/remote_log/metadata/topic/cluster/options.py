"""The options of the metadata topic and of its clients, by Kafka's names after the prefix `rlmm.config.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC
from tiered_storage.settings.own_managers import COMMON_CLIENT_PREFIX, METADATA_CACHE_OPTION, METADATA_TOPIC_OPTION

_PREFIX: Final = "rlmm.config."
_REPLICATION: Final = "remote.log.metadata.topic.replication.factor"
_PARTITIONS: Final = "remote.log.metadata.topic.num.partitions"
_RETENTION: Final = "remote.log.metadata.topic.retention.ms"
_MIN_ISR: Final = "remote.log.metadata.topic.min.isr"
_CONSUME_WAIT: Final = "remote.log.metadata.consume.wait.ms"
_RETRY_TIMEOUT: Final = "remote.log.metadata.initialization.retry.max.timeout.ms"
_RETRY_INTERVAL: Final = "remote.log.metadata.initialization.retry.interval.ms"
_CLIENTS: Final = {role: f"remote.log.metadata.{role}." for role in ("common.client", "producer", "consumer", "admin")}
_LIMITS: Final = {
    # name: (default, least, most)
    _REPLICATION: (3, 1, 32767),
    _PARTITIONS: (50, 1, 100_000),
    _RETENTION: (-1, -1, 2**63 - 1),
    _MIN_ISR: (2, 1, 32767),
    _CONSUME_WAIT: (120_000, 1, 2**31 - 1),
    _RETRY_TIMEOUT: (120_000, 0, 2**31 - 1),
    _RETRY_INTERVAL: (100, 1, 2**31 - 1),
}
_NOT_OURS: Final = frozenset({"url"})
"""Settings of their own, which are handed over too."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The metadata topic and its clients; times are ms. `clients` has librdkafka's properties by Kafka's role names."""

    cache_directory: Path
    name: str = OUR_METADATA_TOPIC
    replication_factor: int = 3
    partitions: int = 50
    retention_ms: int = -1
    min_isr: int = 2
    consume_wait_ms: int = 120_000
    retry_timeout_ms: int = 120_000
    retry_interval_ms: int = 100
    clients: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Self:
        """Read the options. Raises ConfigurationError with every problem."""
        clients: dict[str, dict[str, str]] = {role: {} for role in _CLIENTS}
        numbers = {name: default for name, (default, _, _) in _LIMITS.items()}
        problems: list[str] = []
        for name, value in configs.items():
            role = next((each for each, prefix in _CLIENTS.items() if name.startswith(prefix)), None)
            if role is not None:
                clients[role][name.removeprefix(_CLIENTS[role])] = value
            elif name in _LIMITS:
                number = _whole(name, value)
                numbers[name] = number if isinstance(number, int) else numbers[name]
                problems += [number] if isinstance(number, str) else []
            elif name not in {METADATA_TOPIC_OPTION, METADATA_CACHE_OPTION, *_NOT_OURS}:
                problems.append(f"{_PREFIX}{name} is not an option of the metadata topic: correct or remove it")
        if METADATA_CACHE_OPTION not in configs:
            problems.append(f"{_PREFIX}{METADATA_CACHE_OPTION} is missing: name a folder on a local disk")
        if problems:
            raise ConfigurationError("; ".join(problems))
        return cls(
            Path(configs[METADATA_CACHE_OPTION]),
            name=configs.get(METADATA_TOPIC_OPTION, OUR_METADATA_TOPIC),
            replication_factor=numbers[_REPLICATION],
            partitions=numbers[_PARTITIONS],
            retention_ms=numbers[_RETENTION],
            min_isr=numbers[_MIN_ISR],
            consume_wait_ms=numbers[_CONSUME_WAIT],
            retry_timeout_ms=numbers[_RETRY_TIMEOUT],
            retry_interval_ms=numbers[_RETRY_INTERVAL],
            clients=clients,
        )

    def client(self, role: str) -> dict[str, str]:
        """Return the properties of the `role` consumer, producer or admin: its own before those common to all.

        Raises ConfigurationError if no brokers are known.
        """
        found = {**self.clients.get("common.client", {}), **self.clients.get(role, {})}
        if not found.get("bootstrap.servers"):
            raise ConfigurationError(
                f"the metadata topic {self.name} is on no cluster: set cluster.client.properties.file, or "
                f"{_PREFIX}{COMMON_CLIENT_PREFIX}bootstrap.servers"
            )
        return found

    @property
    def write_wait_ms(self) -> int:
        """How long a record may wait for the brokers (ms): a record that arrives after its lease ended may undo what
        the next holder did.
        """
        own = self.client("producer").get("message.timeout.ms", "")
        return min(self.consume_wait_ms, int(own) or self.consume_wait_ms) if own.isdigit() else self.consume_wait_ms

    @property
    def servers(self) -> str:
        """The brokers that are asked first, for messages."""
        return self.client("admin")["bootstrap.servers"]


def setting_name(option: str) -> str:
    """Return the name of the setting that has the option of TopicOptions called `option`."""
    names = {
        "name": METADATA_TOPIC_OPTION,
        "partitions": _PARTITIONS,
        "replication_factor": _REPLICATION,
        "retention_ms": _RETENTION,
    }
    return _PREFIX + names[option]


def _whole(name: str, value: str) -> int | str:
    """Return the number, or why it is refused."""
    _, least, most = _LIMITS[name]
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    return number if least <= number <= most else f"{_PREFIX}{name} must be a whole number from {least} to {most}"
