from __future__ import annotations

from tiered_storage.gateway.limits.idle_connections import IdleConnections
from tiered_storage.kafka_wire.server.frame_protocol import LINGER_SECONDS
from unit.tiered_storage.gateway.test_client_connection import Joined

IDLE = 600.0


def test_a_connection_over_which_nothing_goes_is_closed() -> None:
    idle, busy, quiet = IdleConnections(IDLE), Joined(), Joined()
    both = [busy.connection, quiet.connection]

    assert idle.close_idle(both, 0, is_short=False) == 0
    busy.asks(1)
    assert idle.close_idle(both, IDLE - 1, is_short=False) == 0
    assert idle.close_idle(both, IDLE, is_short=False) == 1

    assert (quiet.client.aborted, quiet.broker.aborted, busy.client.aborted) == (True, True, False)


def test_a_client_that_reads_nothing_is_closed_sooner_while_others_wait_for_memory() -> None:
    idle, slow, quiet = IdleConnections(IDLE), Joined(), Joined()
    both = [slow.connection, quiet.connection]
    slow.connection.client.pause_writing()

    idle.close_idle(both, 0, is_short=True)
    assert idle.close_idle(both, LINGER_SECONDS, is_short=False) == 0
    assert idle.close_idle(both, LINGER_SECONDS, is_short=True) == 1

    assert (slow.client.aborted, quiet.client.aborted) == (True, False)


def test_a_client_that_reads_slowly_stays_connected() -> None:
    idle, slow = IdleConnections(IDLE), Joined()
    slow.connection.client.pause_writing()
    slow.client.unsent = 100

    for second in range(5):
        slow.client.unsent -= 1
        assert idle.close_idle([slow.connection], second * LINGER_SECONDS, is_short=True) == 0
