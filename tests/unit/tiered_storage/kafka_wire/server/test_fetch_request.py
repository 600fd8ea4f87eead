from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import decode_request, encode_request, entity, request, request_module
from tiered_storage.kafka_wire.fetch_layout import BY_TOPIC_ID, LATEST, OLDEST, WITH_SESSIONS
from tiered_storage.kafka_wire.server.fetch_request import REPLICA_IN_TAG, AskedPartition, take_fetch
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header

FETCH = Api(1, "Fetch", OLDEST, LATEST)
APIS = {FETCH.key: FETCH}
VERSIONS = range(OLDEST, LATEST + 1)
MOST = 1 << 20
ORDERS = UUID(int=7 << 70)


def fetch(version: int, replica_id: int = -1, max_bytes: int = 50 << 20) -> Any:
    """A Fetch with a session, two partitions, one that is forgotten, and a rack."""
    kio = request_module(FETCH, version)
    topic = {"topic": "orders", "topic_id": ORDERS}
    partitions = tuple(
        entity(
            kio.FetchPartition,
            partition=number,
            current_leader_epoch=3,
            fetch_offset=100 + number,
            last_fetched_epoch=2,
            log_start_offset=1,
            partition_max_bytes=1000 + number,
        )
        for number in (0, 5)
    )
    more: dict[str, Any] = {}
    if version >= WITH_SESSIONS:
        more["forgotten_topics_data"] = (entity(kio.ForgottenTopic, **topic, partitions=(8, 9)),)
    if version >= REPLICA_IN_TAG:
        more["replica_state"] = kio.ReplicaState(replica_id=replica_id, replica_epoch=4)
    return request(
        FETCH,
        version,
        replica_id=replica_id,
        max_wait=timedelta(milliseconds=321),
        min_bytes=5,
        max_bytes=max_bytes,
        isolation_level=1,
        session_id=77,
        session_epoch=6,
        topics=(entity(kio.FetchTopic, **topic, partitions=partitions),),
        rack_id="here",
        **more,
    )


def arrived(message: Any) -> tuple[memoryview, RequestHeader]:
    frame = memoryview(bytearray(encode_request(message, 12, "a client")))
    return frame, read_header(frame, APIS)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_client_asks_for_is_read(version: int) -> None:
    frame, header = arrived(fetch(version))

    found = take_fetch(frame, header, 100 << 20)

    topic = ORDERS.bytes if version >= BY_TOPIC_ID else "orders"
    assert (found.version, found.max_wait_ms, found.max_bytes, found.is_committed) == (version, 321, 50 << 20, True)
    assert found.partitions == {(topic, 0): AskedPartition(100, 1000), (topic, 5): AskedPartition(105, 1005)}
    assert found.is_consumer


@pytest.mark.parametrize("version", VERSIONS)
def test_only_session_and_limit_are_changed(version: int) -> None:
    sent = fetch(version)
    frame, header = arrived(sent)

    found = take_fetch(frame, header, MOST)

    changes: dict[str, Any] = {"max_bytes": MOST}
    if version >= WITH_SESSIONS:
        changes |= {"session_id": 0, "session_epoch": -1}
    assert decode_request(header.body(frame), FETCH, version) == replace(sent, **changes)
    assert found.max_bytes == MOST


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_may_fill_half_of_a_shared_answer(version: int) -> None:
    frame, header = arrived(fetch(version))

    found = take_fetch(frame, header, MOST, share=True)

    assert found.max_bytes == MOST
    assert decode_request(header.body(frame), FETCH, version).max_bytes == MOST // 2


def test_a_single_partition_shares_its_answer_with_none() -> None:
    sent = fetch(LATEST)
    [topic] = sent.topics
    frame, header = arrived(replace(sent, topics=(replace(topic, partitions=topic.partitions[:1]),)))

    take_fetch(frame, header, MOST, share=True)

    assert decode_request(header.body(frame), FETCH, LATEST).max_bytes == MOST


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_is_no_consumer(version: int) -> None:
    frame, header = arrived(fetch(version, replica_id=2))

    assert not take_fetch(frame, header, MOST).is_consumer


@given(version=st.sampled_from(VERSIONS), at=st.integers(0), data=st.data())
def test_a_request_cut_off_or_garbled_is_refused_or_read(version: int, at: int, data: st.DataObject) -> None:
    frame, header = arrived(fetch(version))
    body = len(frame) - header.body_start
    cut = frame[: header.body_start + at % body]
    with pytest.raises(MalformedAnswerError):
        take_fetch(cut, header, MOST)

    frame[header.body_start + at % body] = data.draw(st.integers(0, 255))
    try:
        take_fetch(frame, header, MOST)
    except MalformedAnswerError:
        return


def test_bytes_after_the_end_are_refused() -> None:
    frame, header = arrived(fetch(LATEST))

    with pytest.raises(MalformedAnswerError, match=r"\b1 bytes"):
        take_fetch(memoryview(bytearray(bytes(frame) + b"x")), header, MOST)
