from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

import pytest

from support.served_clusters import served_cluster
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.server import GatewayServer
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings

HERE = "127.0.0.1"


class NoRemoteLog:
    """A remote log without readers."""

    def forget(self, _: object) -> None:
        """Let the reader forget a client."""


def closed_port() -> int:
    """A port on which no process listens."""
    with socket.create_server((HERE, 0)) as free:
        return int(free.getsockname()[1])


async def visit(port: int) -> None:
    """Connect to the gateway, and stay until it closes the connection."""
    reader, writer = await asyncio.open_connection(HERE, port)
    await reader.read()
    writer.close()


def test_a_broker_out_of_reach_is_one_warning_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    metrics, port, broker = GatewayMetrics(), closed_port(), BrokerAddress(HERE, closed_port())

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def work() -> None:
        nothing = cast(Any, NoRemoteLog())
        ports = BrokerPorts(HERE, port, [broker])
        cluster = served_cluster(nothing, nothing, MemoryBudget(1 << 20), metrics=metrics, ports=ports)
        server = GatewayServer(HERE, cluster, ClientSettings((broker,)))
        await server.start([])
        await visit(port)
        await visit(port)
        async with await asyncio.start_server(hang_up, broker.host, broker.port):
            await visit(port)
        await visit(port)
        await server.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(work(), 30))
    levels = [each.levelname for each in caplog.records if "cannot be reached" in each.getMessage()]
    assert levels == ["WARNING", "INFO", "WARNING"]
    assert metrics.registry.get_sample_value("remote_log_gateway_refused_connections_total", {"reason": "broker"}) == 3
