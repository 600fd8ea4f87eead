"""Which port of the gateway stands for which broker.

The first port leads to any broker, for bootstrap.servers. A broker with id N has the port N + 1 after it, on every host
and after every restart, so that clients may keep what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress

_LAST_PORT: Final = 65_535


class BrokerPorts:
    """The brokers that were seen so far, and their ports here. For one event loop."""

    def __init__(self, advertised_host: str, first_port: int, bootstrap: Iterable[BrokerAddress]) -> None:
        """Let clients connect to `advertised_host`; `bootstrap` are brokers to begin with."""
        self._advertised_host = advertised_host
        self._first_port = first_port
        self._bootstrap = tuple(bootstrap)
        self._addresses: dict[int, BrokerAddress] = {}
        self.on_new: Callable[[int], None] = lambda _: None
        """Called with the id of a broker that was not seen before."""

    @property
    def first_port(self) -> int:
        """The port that leads to any broker."""
        return self._first_port

    def port(self, node_id: int) -> int:
        """Return the port of a broker. Raises ConfigurationError if there is none for its id."""
        port = self._first_port + 1 + node_id
        if port > _LAST_PORT:
            raise ConfigurationError(
                f"broker {node_id} would have port {port} of the gateway, and ports end at {_LAST_PORT}: set a smaller "
                "gateway.port"
            )
        return port

    def translate(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """Return where clients reach a broker that listens at `host` and `port`. Raises ConfigurationError."""
        here = self.port(node_id)
        self.learn(node_id, BrokerAddress(host, port))
        return self._advertised_host, here

    def learn(self, node_id: int, address: BrokerAddress) -> None:
        """Take note of where a broker listens now."""
        is_new = node_id not in self._addresses
        self._addresses[node_id] = address
        if is_new:
            self.on_new(node_id)

    def addresses(self, node_id: int | None) -> list[BrokerAddress]:
        """Return where a broker listens; for None, where any may, the best known first."""
        if node_id is not None:
            return [self._addresses[node_id]] if node_id in self._addresses else []
        return list(dict.fromkeys([*self._addresses.values(), *self._bootstrap]))
