from __future__ import annotations

from tiered_storage.gateway.limits.idle_connections import IdleConnections
from tiered_storage.kafka_wire.server.send_queue import LINGER_SECONDS
from unit.tiered_storage.gateway.connections.test_client_connection import Joined

IDLE = 600.0


def test_a_connection_over_which_nothing_goes_is_closed() -> None:
    idle, busy, quiet = IdleConnections(IDLE), Joined(), Joined()
    both = [busy.connection, quiet.connection]

    assert idle.close_idle(both, 0, is_short=False) == 0
    busy.asks(1)
    assert idle.close_idle(both, IDLE - 1, is_short=False) == 0
    assert idle.close_idle(both, IDLE, is_short=False) == 1

    assert (quiet.client.aborted, quiet.broker.aborted, busy.client.aborted) == (True, True, False)


def test_a_connection_that_keeps_memory_from_others_is_closed_sooner() -> None:
    idle, slow, quiet = IdleConnections(IDLE), Joined(), Joined()
    both = [slow.connection, quiet.connection]
    assert slow.connection.memory.take_if_free(1)

    idle.close_idle(both, 0, is_short=True)
    assert idle.close_idle(both, LINGER_SECONDS, is_short=False) == 0
    assert idle.close_idle(both, LINGER_SECONDS, is_short=True) == 1

    assert (slow.client.aborted, quiet.client.aborted) == (True, False)


def test_a_connection_that_waits_for_memory_itself_is_not() -> None:
    idle, waiting = IdleConnections(IDLE), Joined()
    most, ahead = waiting.budget.account(), waiting.budget.account()
    assert waiting.connection.memory.take_if_free(1)
    assert most.take_if_free(waiting.budget.limit - 1)
    assert ahead.take(1, lambda: None)
    assert not waiting.connection.memory.take(1, lambda: None)

    idle.close_idle([waiting.connection], 0, is_short=True)
    assert idle.close_idle([waiting.connection], LINGER_SECONDS, is_short=True) == 0


def test_a_client_that_reads_slowly_stays_connected() -> None:
    idle, slow = IdleConnections(IDLE), Joined()
    assert slow.connection.memory.take_if_free(1)
    slow.connection.client.pause_writing()
    slow.client.unsent = 100

    for second in range(5):
        slow.client.unsent -= 1
        assert idle.close_idle([slow.connection], second * LINGER_SECONDS, is_short=True) == 0
