"""A topic with all that a restore has to bring back, and what its broker served of it before it was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING

from support.kafka_clients import CODECS, Isolation, RealKafkaClient, send
from support.records import varied_records
from tiered_storage.kafka_log.records.record import Record

MANY, TRANSACTIONS = 0, 1
PARTITIONS = 2
ROUNDS = 2
"""Each is written under a leader epoch of its own."""
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
_MANY, _TRANSACTIONS, _RECORDS = 400, 6, 60


def write_round(client: RealKafkaClient, topic: str, round_: int) -> None:
    """Write to both partitions, to each by another codec; TRANSACTIONS gets some, every other one aborted."""
    codec = CODECS[round_ % len(CODECS)]
    client.produce(topic, varied_records(_MANY, seed=round_), codec=codec, batch_num_messages=40)
    producer = client.producer(transactional_id=topic, max_in_flight=5)
    producer.init_transactions(30)
    for number in range(_TRANSACTIONS):
        producer.begin_transaction()
        send(producer, topic, TRANSACTIONS, varied_records(_RECORDS, seed=10 * round_ + number))
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def write_rest(client: RealKafkaClient, topic: str) -> None:
    """Write so much that all before it is in closed segments: the active one is not copied."""
    for number in range(PARTITIONS):
        client.produce(topic, varied_records(_MANY, seed=99), partition=number, batch_num_messages=40)


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """What a broker served of `topic`, by partition and isolation, up to the end of what was copied."""

    topic: str
    served: dict[tuple[int, Isolation], list[Record]]

    @classmethod
    def by(cls, client: RealKafkaClient, topic: str, ends: Mapping[int, int]) -> ServedTopic:
        """Read it up to the `ends` (exclusive) of its partitions."""
        return cls(
            topic,
            {
                (number, isolation): [
                    each
                    for each in client.consume_all(topic, number, start=OFFSET_BEGINNING, isolation=isolation)
                    if each.offset < end
                ]
                for number, end in ends.items()
                for isolation in ISOLATIONS
            },
        )

    def ensure_served(self, client: RealKafkaClient) -> None:
        """See that a broker serves the same, and no more."""
        for (number, isolation), records in self.served.items():
            found = client.consume_all(self.topic, number, start=OFFSET_BEGINNING, isolation=isolation)
            assert found == records, (self.topic, number, isolation)

    def ensure_continues(self, client: RealKafkaClient) -> None:
        """See that new records and transactions follow, also of producers whose ids the old log has."""
        before = self.served[TRANSACTIONS, "read_committed"]
        many = len(client.consume_all(self.topic, MANY, start=OFFSET_BEGINNING))
        write_round(client, self.topic, 7)
        found = client.consume_all(self.topic, TRANSACTIONS, start=OFFSET_BEGINNING, isolation="read_committed")
        assert found[: len(before)] == before
        assert len(found) == len(before) + _TRANSACTIONS // 2 * _RECORDS
        assert len(client.consume_all(self.topic, MANY, start=OFFSET_BEGINNING)) == many + _MANY
