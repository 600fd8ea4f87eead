from __future__ import annotations

from tiered_storage.gateway.limits.client_quotas import ClientName, ClientQuotas
from tiered_storage.kafka_log.log.log_config import INT64_MAX

CLIENT, OTHER = ClientName("anna", "reports"), ClientName("", "reports")


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_debt_is_paid_by_time() -> None:
    clock = Clock()
    quotas = ClientQuotas(1000, clock)
    assert quotas.room(CLIENT) == 1000
    assert quotas.take(CLIENT, 400) == 0
    assert quotas.room(CLIENT) == 600

    assert quotas.take(CLIENT, 2600) == 2000
    assert quotas.room(CLIENT) == 0
    clock.seconds = 1.5
    assert (quotas.room(CLIENT), quotas.take(CLIENT, 0)) == (0, 500)
    clock.seconds = 2.25
    assert (quotas.room(CLIENT), quotas.take(CLIENT, 0)) == (250, 0)


def test_a_client_saves_no_more_than_a_second() -> None:
    clock = Clock()
    quotas = ClientQuotas(1000, clock)
    quotas.take(CLIENT, 1)
    clock.seconds = 3600

    assert quotas.room(CLIENT) == 1000


def test_each_user_and_client_id_has_its_own() -> None:
    quotas = ClientQuotas(1000, Clock())
    quotas.take(CLIENT, 5000)

    assert quotas.room(OTHER) == 1000


def test_without_a_limit_nothing_is_counted() -> None:
    quotas = ClientQuotas(None)

    assert (quotas.room(CLIENT), quotas.take(CLIENT, 1 << 40)) == (INT64_MAX, 0)
