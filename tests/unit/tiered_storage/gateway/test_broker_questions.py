from __future__ import annotations

import asyncio

import pytest

from tiered_storage.errors import ReadQuotaExceededError
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedPartition, NamedTopic
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from unit.tiered_storage.gateway.brokers import RAW_ID, TOPIC, TOPIC_ID, ScriptedBroker

PARTITION = NamedPartition(NamedTopic(TOPIC, TOPIC_ID), 0)
BEFORE, AFTER = AbortedTransaction(7, 50), AbortedTransaction(8, 150)
"""Transactions that begin before the remote log's end, 100, and after it."""


def across(broker: ScriptedBroker, remote_end: int = 100) -> tuple[AbortedTransaction, ...] | int | None:
    return asyncio.run(BrokerQuestions(broker).aborted_across(PARTITION, remote_end))


def test_aborted_transactions_across_the_remote_end_begin_before_it() -> None:
    broker = ScriptedBroker(PartitionOffsets(60, 200, 180), aborted=(BEFORE, AFTER))

    assert across(broker) == (BEFORE,)
    assert broker.fetched == [100]


def test_at_the_last_stable_offset_the_record_before_it_is_asked_for() -> None:
    broker = ScriptedBroker(PartitionOffsets(60, 200, 100), aborted=(BEFORE,))

    assert across(broker) == (BEFORE,)
    assert broker.fetched == [99]


def test_a_broker_whose_log_begins_at_the_last_stable_offset_cannot_know_them() -> None:
    broker = ScriptedBroker(PartitionOffsets(100, 200, 100), aborted=())

    async def work() -> None:
        questions = BrokerQuestions(broker)
        assert await questions.aborted_across(PARTITION, 100) is None
        assert not broker.fetched
        broker.offsets, broker.aborted = PartitionOffsets(100, 300, 250), (BEFORE,)
        assert await questions.aborted_across(PARTITION, 100) == (BEFORE,)

    asyncio.run(work())


def test_a_broker_whose_log_begins_after_the_remote_end_cannot_know_them() -> None:
    assert across(ScriptedBroker(PartitionOffsets(101, 200, 200))) is None


def test_nothing_was_aborted_after_the_end_of_everything() -> None:
    broker = ScriptedBroker(PartitionOffsets(100, 100, 100), aborted=(BEFORE,))

    assert across(broker) == ()
    assert not broker.fetched


def test_a_broker_that_a_quota_holds_back_is_asked_again() -> None:
    with pytest.raises(ReadQuotaExceededError, match="orders-0: a quota"):
        across(ScriptedBroker(aborted=None))


@pytest.mark.parametrize("broker", [ScriptedBroker(aborted=6), ScriptedBroker(6)])
def test_an_error_of_the_broker_is_returned(broker: ScriptedBroker) -> None:
    assert across(broker) == 6


def test_transactions_are_asked_for_once_for_each_end_of_the_remote_log() -> None:
    broker = ScriptedBroker(PartitionOffsets(60, 200, 180), aborted=(BEFORE,))

    async def work() -> None:
        questions = BrokerQuestions(broker)
        for remote_end in (100, 100, 120, 120):
            await questions.aborted_across(PARTITION, remote_end)
        assert broker.fetched == [100, 120]

    asyncio.run(work())


def test_offsets_are_used_for_a_second_unless_they_must_be_new() -> None:
    broker, times = ScriptedBroker(), iter([0.0, 0.9, 0.95, 1.5, 2.1])

    async def work() -> None:
        questions = BrokerQuestions(broker, lambda: next(times))
        asked = []
        for must_be_new in (False, False, True, False, False):
            await questions.offsets([PARTITION], now=must_be_new)
            asked.append(len(broker.asked))
        assert asked == [3, 3, 6, 6, 9]

    asyncio.run(work())


def test_below_the_brokers_log_start_offsets_are_used_for_ten_seconds() -> None:
    broker = ScriptedBroker(PartitionOffsets(60, 200, 180))

    async def work() -> None:
        times: list[float] = []
        questions = BrokerQuestions(broker, lambda: times[-1])
        asked = []
        for now, position in ((0.0, 59), (9.9, 59), (9.9, 60), (10.8, 60), (12.0, 60), (21.9, 59), (22.1, 59)):
            times.append(now)
            assert await questions.offsets_below({PARTITION: position}) == {PARTITION: broker.offsets}
            asked.append(len(broker.asked))
        assert asked == [3, 3, 6, 6, 9, 9, 12]

    asyncio.run(work())


def test_connections_share_the_names_of_ids() -> None:
    first, second = ScriptedBroker(), ScriptedBroker()
    names: dict[bytes, NamedTopic] = {}

    async def work() -> None:
        await BrokerQuestions(first, names=names).topics([RAW_ID])
        found = await BrokerQuestions(second, names=names).topics([RAW_ID])
        assert found == {RAW_ID: NamedTopic(TOPIC, TOPIC_ID)}
        assert (len(first.asked), len(second.asked)) == (1, 0)

    asyncio.run(work())


def test_the_id_of_a_topic_is_asked_for_each_time_and_the_name_of_an_id_once() -> None:
    broker = ScriptedBroker()

    async def work() -> None:
        questions = BrokerQuestions(broker)
        assert await questions.topics([TOPIC]) == {TOPIC: NamedTopic(TOPIC, TOPIC_ID)}
        broker.topic_id = bytes(15) + b"\x08"
        [again] = (await questions.topics([TOPIC])).values()
        assert again != NamedTopic(TOPIC, TOPIC_ID)
        asked = len(broker.asked)
        assert await questions.topics([RAW_ID]) == {RAW_ID: NamedTopic(TOPIC, TOPIC_ID)}
        assert len(broker.asked) == asked

    asyncio.run(work())


@pytest.mark.parametrize("key", [TOPIC, RAW_ID])
def test_a_topic_that_the_broker_does_not_describe_has_its_error(key: str | bytes) -> None:
    assert asyncio.run(BrokerQuestions(ScriptedBroker(topic_code=29)).topics([key])) == {key: 29}


def test_high_watermarks_are_those_of_the_partitions_that_the_broker_leads() -> None:
    led, other = ScriptedBroker(PartitionOffsets(60, 200, 180)), ScriptedBroker(6)

    assert asyncio.run(BrokerQuestions(led).high_watermarks([(TOPIC, 0)])) == {(TOPIC, 0): 200}
    assert asyncio.run(BrokerQuestions(other).high_watermarks([(TOPIC, 0)])) == {}
