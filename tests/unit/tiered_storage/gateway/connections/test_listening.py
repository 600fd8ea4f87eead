from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from support.wires import arrive
from tiered_storage.gateway.connections import listening
from tiered_storage.gateway.connections.listening import OpenConnections
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from unit.tiered_storage.gateway.connections.test_client_connection import LIMIT, Joined, run


def shown(registry: CollectorRegistry, name: str, reason: str | None = None) -> float | None:
    return registry.get_sample_value(f"remote_log_gateway_{name}", {} if reason is None else {"reason": reason})


def test_more_connections_than_allowed_are_refused() -> None:
    metrics = GatewayMetrics()
    opened, first, second = OpenConnections(1, 600, MemoryBudget(LIMIT), metrics), Joined(), Joined()

    opened.add(first.connection)
    assert not opened.refuse_excess(first.connection)
    opened.add(second.connection)
    assert opened.refuse_excess(second.connection)

    assert (first.client.aborted, second.client.aborted) == (False, True)
    assert shown(metrics.registry, "connections") == 2
    assert shown(metrics.registry, "refused_connections_total", "limit") == 1


def test_a_connection_that_ended_is_counted_out_once() -> None:
    metrics, ends = GatewayMetrics(), []
    opened, ended = OpenConnections(1, 600, MemoryBudget(LIMIT), metrics), Joined().connection

    opened.add(ended, on_end=lambda: ends.append(ended))
    opened.remove(ended)
    opened.remove(ended)

    assert ends == [ended]
    assert shown(metrics.registry, "connections") == 0


def test_only_a_client_that_speaks_no_kafka_is_counted_as_invalid() -> None:
    async def work() -> None:
        metrics = GatewayMetrics()
        opened, invalid, away = OpenConnections(10, 600, MemoryBudget(LIMIT), metrics), Joined(), Joined()
        arrive(invalid.connection.client, b"GET / HTTP/1.1")
        for each, reason in ((invalid, None), (away, ConnectionResetError())):
            opened.add(each.connection)
            each.connection.client.connection_lost(reason)
            opened.remove(each.connection)

        assert shown(metrics.registry, "refused_connections_total", "invalid") == 1

    run(work)


def test_draining_closes_what_stays_busy_and_refuses_new_connections() -> None:
    async def work() -> None:
        opened = OpenConnections(10, 600, MemoryBudget(LIMIT), GatewayMetrics())
        busy, late = Joined(), Joined()
        opened.add(busy.connection)
        busy.asks(1)

        await opened.drain(0)
        opened.add(late.connection)

        assert busy.client.aborted
        assert opened.refuse_excess(late.connection)

    run(work)


def test_a_client_that_agrees_on_no_tls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_HANDSHAKE_SECONDS", 0.1)

    async def work() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        async with await listening.listen(lambda: Joined().connection.client, "127.0.0.1", 0, tls) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()

    run(work)
