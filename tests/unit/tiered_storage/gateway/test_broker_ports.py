from __future__ import annotations

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress

BOOTSTRAP = BrokerAddress("kafka-1", 9092)


def ports() -> BrokerPorts:
    return BrokerPorts("gateway", 19_092, [BOOTSTRAP])


def test_each_broker_has_a_port_that_its_id_alone_decides() -> None:
    assert ports().translate(0, "kafka-0", 9092) == ("gateway", 19_093)
    assert ports().translate(1001, "kafka-1001", 9092) == ("gateway", 20_094)


def test_a_broker_that_moves_is_found_where_it_is_now() -> None:
    known = ports()
    seen: list[int] = []
    known.on_new = seen.append
    known.translate(2, "kafka-2", 9092)
    known.translate(2, "kafka-2-new", 9093)

    assert known.addresses(2) == [BrokerAddress("kafka-2-new", 9093)]
    assert seen == [2]


def test_the_first_port_leads_to_any_broker() -> None:
    known = ports()
    assert known.addresses(None) == [BOOTSTRAP]
    known.translate(2, "kafka-2", 9092)

    assert known.addresses(None) == [BrokerAddress("kafka-2", 9092), BOOTSTRAP]
    assert known.addresses(7) == []


def test_an_id_beyond_the_last_port_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"broker 50000 .* gateway\.port"):
        ports().translate(50_000, "kafka", 9092)
