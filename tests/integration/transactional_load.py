"""A load of transactions on three brokers."""

from __future__ import annotations

import os
from itertools import count

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from support.live_cluster import RATE, LiveCluster
from support.waiting import PATIENCE_SECONDS
from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place
from tiered_storage_airflow.demo_cluster.load import Background

_TRANSACTION = 30
"""Records."""


class TransactionalProducer(Background):
    """Writes to `topic` in transactions without a pause.

    Every third transaction is aborted. The ledger gets the records of a transaction once its commit is acknowledged.
    """

    def __init__(self, site: LiveCluster, topic: str, ledger: Ledger) -> None:
        """Start nothing yet."""
        super().__init__(f"transactions of {topic}")
        self._topic = topic
        self._ledger = ledger
        self._properties = {
            "bootstrap.servers": site.kafka.bootstrap_servers,
            "transactional.id": topic,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 5,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
        }
        self.aborted: dict[bytes, Place] = {}
        """Where the records of transactions are that were aborted on purpose, by key."""
        self.failures: list[str] = []
        """Why transactions failed; it is unknown whether these were committed."""

    def _run(self) -> None:
        sender: Producer | None = None
        for number in count():
            if self._stopped.is_set():
                break
            try:
                if sender is None:
                    sender = Producer(self._properties)
                    sender.init_transactions(PATIENCE_SECONDS)
                self._transaction(sender, number)
            except KafkaException as error:
                self.failures.append(str(error))
                # A new producer with the same id makes the broker abort the open transaction.
                sender = None

    def _transaction(self, sender: Producer, number: int) -> None:
        keys, places = [f"{self._topic}-{number}-{at}".encode() for at in range(_TRANSACTION)], dict[bytes, Place]()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                places[bytes(message.key() or b"")] = Place.of(message)

        sender.begin_transaction()
        for key in keys:
            sender.produce(self._topic, os.urandom(1000), key, on_delivery=delivered)
        sender.flush(PATIENCE_SECONDS)
        if number % 3 == 2:
            sender.abort_transaction(PATIENCE_SECONDS)
            self.aborted |= places
            return
        sender.commit_transaction(PATIENCE_SECONDS)
        for key, place in places.items():
            self._ledger.acknowledge(key, place)
        self._stopped.wait(_TRANSACTION / RATE)
