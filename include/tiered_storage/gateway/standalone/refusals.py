"""Answers to what a gateway without brokers never does: groups, transactions, and writing.

Each error ends what a client tries at once, in every client: Kafka's clients repeat none of them. A client that only
assigns partitions may look for its group's coordinator (librdkafka always does): it finds one, and only the coordinator
refuses.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from tiered_storage.gateway.standalone.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    INIT_PRODUCER_ID,
    NO_TIME,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from tiered_storage.kafka_wire.connections.frames import answer, answer_module, elements, entity
from tiered_storage.kafka_wire.fetch_layout import NO_OFFSET

NO_GROUPS: Final = (
    "this gateway serves a log without brokers, so it has no consumer groups: assign partitions and offsets instead"
)
READ_ONLY: Final = "this gateway serves a log without brokers: it is read-only"

REFUSED_GROUP: Final = ErrorCode(GROUP_AUTHORIZATION_FAILED)
REFUSED_TRANSACTION: Final = ErrorCode(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
_REFUSED_PRODUCER: Final = ErrorCode(CLUSTER_AUTHORIZATION_FAILED)
_REFUSED_TOPIC: Final = ErrorCode(TOPIC_AUTHORIZATION_FAILED)


def refused(api: Api, version: int, asked: Any) -> Any:
    """Return kio's answer that refuses a group's request, or one for a producer's id."""
    if api is OFFSET_COMMIT:
        return _refused_commit(version, asked)
    if api is OFFSET_FETCH:
        return _refused_offsets(version, asked)
    values: dict[str, Any] = {
        "throttle_time": NO_TIME,
        "error_code": _refused_code(api, asked),
        "error_message": NO_GROUPS,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": "",
        "leader": "",
        "member_id": "",
        "member_epoch": -1,
        "members": (),
        "heartbeat_interval": NO_TIME,
        "producer_id": -1,
        "producer_epoch": -1,
        "assignment": b"" if api is SYNC_GROUP else None,
    }
    if api is CONSUMER_GROUP_HEARTBEAT:
        values["member_id"] = None
    return answer(api, version, **values)


def refused_produce(api: Api, version: int, asked: Any) -> Any:
    """Return kio's answer that refuses all records of a Produce."""
    module = answer_module(api, version)
    topics = tuple(
        entity(
            module.TopicProduceResponse,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partition_responses=tuple(
                entity(
                    module.PartitionProduceResponse,
                    index=each.index,
                    error_code=_REFUSED_TOPIC,
                    base_offset=NO_OFFSET,
                    log_append_time=None,
                    log_start_offset=NO_OFFSET,
                    record_errors=(),
                    error_message=READ_ONLY,
                )
                for each in elements(topic.partition_data)
            ),
        )
        for topic in elements(asked.topic_data)
    )
    return answer(api, version, responses=topics, throttle_time=NO_TIME)


def _refused_code(api: Api, asked: Any) -> ErrorCode:
    if api is not INIT_PRODUCER_ID:
        return REFUSED_GROUP
    return _REFUSED_PRODUCER if asked.transactional_id is None else REFUSED_TRANSACTION


def _refused_commit(version: int, asked: Any) -> Any:
    module = answer_module(OFFSET_COMMIT, version)
    topics = tuple(
        entity(
            module.OffsetCommitResponseTopic,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                entity(
                    module.OffsetCommitResponsePartition,
                    partition_index=each.partition_index,
                    error_code=REFUSED_GROUP,
                )
                for each in elements(topic.partitions)
            ),
        )
        for topic in elements(asked.topics)
    )
    return answer(OFFSET_COMMIT, version, throttle_time=NO_TIME, topics=topics)


def _refused_offsets(version: int, asked: Any) -> Any:
    module = answer_module(OFFSET_FETCH, version)
    if hasattr(asked, "groups"):
        groups = tuple(
            entity(module.OffsetFetchResponseGroup, group_id=each.group_id, topics=(), error_code=REFUSED_GROUP)
            for each in elements(asked.groups)
        )
        return answer(OFFSET_FETCH, version, throttle_time=NO_TIME, groups=groups)
    topics = tuple(
        entity(
            module.OffsetFetchResponseTopic,
            name=topic.name,
            partitions=tuple(
                entity(
                    module.OffsetFetchResponsePartition,
                    partition_index=number,
                    committed_offset=NO_OFFSET,
                    committed_leader_epoch=-1,
                    metadata="",
                    error_code=REFUSED_GROUP,
                )
                for number in elements(topic.partition_indexes)
            ),
        )
        for topic in asked.topics or ()
    )
    return answer(OFFSET_FETCH, version, throttle_time=NO_TIME, topics=topics, error_code=REFUSED_GROUP)
