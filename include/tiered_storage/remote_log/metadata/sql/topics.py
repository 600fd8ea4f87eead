"""The decisions for each topic, in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import topics
from tiered_storage.remote_log.metadata.sql.generation import record_decision


class SqlTopics:
    """`Topics` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """As Topics.get."""
        with self._database.reading() as connection:
            return self._read(connection, cluster_id, topic_id)

    def put(self, topic: Topic) -> None:
        """As Topics.put."""
        with self._database.writing() as connection:
            _write(connection, topic)
            record_decision(connection, self._database.where)

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        """As Topics.change."""
        self._database.spend_reserve()
        with self._database.writing() as connection:
            wanted = change(self._read(connection, cluster_id, topic_id))
            _write(connection, wanted)
            record_decision(connection, self._database.where)
        return wanted

    def named(self, name: str) -> Sequence[Topic]:
        """As Topics.named."""
        statement = select(topics).where(topics.c.name == name).order_by(topics.c.cluster_id, topics.c.topic_id)
        with self._database.reading() as connection:
            return [self._topic(row) for row in connection.execute(statement)]

    def list(self) -> Sequence[Topic]:
        """As Topics.list."""
        statement = select(topics).order_by(topics.c.cluster_id, topics.c.name, topics.c.topic_id)
        with self._database.reading() as connection:
            return [self._topic(row) for row in connection.execute(statement)]

    def _read(self, connection: Connection, cluster_id: str, topic_id: str) -> Topic | None:
        statement = select(topics).where(topics.c.cluster_id == cluster_id, topics.c.topic_id == topic_id)
        row = connection.execute(statement).one_or_none()
        return None if row is None else self._topic(row)

    def _topic(self, row: Row[Any]) -> Topic:
        try:
            properties = {str(name): str(value) for name, value in json.loads(row.properties).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise MetadataCorruptError(
                f"{self._database.where}: the row of topic {row.name} ({row.topic_id}) is damaged ({error}): restore "
                "the metadata store from its backup, or repeat the topic's decision"
            ) from error
        return Topic(
            cluster_id=row.cluster_id,
            topic_id=row.topic_id,
            name=row.name,
            remote_storage_enable=row.remote_storage_enable,
            local_deletion_allowed=row.local_deletion_allowed,
            remote_deletion_allowed=row.remote_deletion_allowed,
            properties=properties,
        )


def _write(connection: Connection, topic: Topic) -> None:
    row = {
        "cluster_id": topic.cluster_id,
        "topic_id": topic.topic_id,
        "name": topic.name,
        "remote_storage_enable": topic.remote_storage_enable,
        "local_deletion_allowed": topic.local_deletion_allowed,
        "remote_deletion_allowed": topic.remote_deletion_allowed,
        "properties": json.dumps(dict(topic.properties), sort_keys=True),
    }
    insert_or_replace(connection, topics, [row])
