from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, a_copied_remote_log, partition_of, topic_id
from tiered_storage.errors import RemoteStorageError
from tiered_storage.gateway.standalone import catalog
from tiered_storage.gateway.standalone.catalog import Catalog, named_topics, read_topics
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid, random_uuid
from tiered_storage.remote_log.model import TopicIdPartition

AGAIN = replace(ORDERS_0, topic_id=random_uuid())
ORDERS_1 = partition_of("orders", 1)


def test_a_local_topic_has_its_remote_partitions_too() -> None:
    topics, ambiguous = named_topics([ORDERS_0], [ORDERS_1])

    assert topics["orders"].partitions == {0: ORDERS_0, 1: ORDERS_1}
    assert topics["orders"].topic_id == decode_uuid(topic_id("orders"))
    assert not ambiguous


def test_the_local_incarnation_of_a_name_is_served() -> None:
    topics, ambiguous = named_topics([AGAIN], [ORDERS_0, ORDERS_1])

    assert topics["orders"].partitions == {0: AGAIN}
    assert not ambiguous


@pytest.mark.parametrize(("local", "remote"), [([], [ORDERS_0, AGAIN]), ([ORDERS_0, AGAIN], [])])
def test_of_several_incarnations_none_is_served(local: list[TopicIdPartition], remote: list[TopicIdPartition]) -> None:
    topics, ambiguous = named_topics(local, remote)

    assert topics == {}
    assert ambiguous == {"orders"}


def test_what_is_remote_is_served_without_the_log_directory(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    shutil.rmtree(files.log_directory)

    with files.open() as remote_log:
        found = read_topics(remote_log.context)

    assert found.by_name["orders"].partitions == {0: ORDERS_0}
    assert found.cluster_id == ORDERS_0.cluster_id
    assert found.problem is not None
    assert str(files.log_directory) in found.problem


def test_a_deleted_topic_is_not_served(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    shutil.rmtree(files.log_directory / "orders-0")

    with files.open() as remote_log:
        planned = remote_log.deletions.plan_topic_deletion("orders", None)
        assert remote_log.deletions.mark_topic_deleted(planned, "test")[0] == (ORDERS_0,)
        assert read_topics(remote_log.context).by_name == {}


def test_the_last_topics_are_served_while_the_metadata_are_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed = [0.0]

    def fail(_: object) -> None:
        raise RemoteStorageError("the server is gone")

    async def work() -> None:
        with a_copied_remote_log(tmp_path).open() as remote_log:
            seen = Catalog(remote_log.context, now=lambda: passed[0])
            first = await seen.topics()
            monkeypatch.setattr(catalog, "read_topics", fail)
            passed[0] = 10.0
            assert await seen.topics() == first

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())

    assert "the server is gone" in caplog.text


def test_a_look_that_failed_after_a_long_time_is_soon_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, really_read = [0.0], catalog.read_topics

    def fail(_: object) -> None:
        passed[0] += 60.0
        raise RemoteStorageError("the server is gone")

    async def work() -> None:
        with a_copied_remote_log(tmp_path).open() as remote_log:
            seen = Catalog(remote_log.context, now=lambda: passed[0])
            first = await seen.topics()
            monkeypatch.setattr(catalog, "read_topics", fail)
            passed[0] += 60.0
            await seen.topics()
            monkeypatch.setattr(catalog, "read_topics", really_read)
            passed[0] += 60.0
            assert await seen.topics() is not first

    asyncio.run(work())


def test_the_last_topics_are_served_while_the_metadata_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, continues = [0.0], threading.Event()

    async def work() -> None:
        with a_copied_remote_log(tmp_path).open() as remote_log:
            seen = Catalog(remote_log.context, now=lambda: passed[0])
            first = await seen.topics()
            monkeypatch.setattr(catalog, "read_topics", lambda _: continues.wait(30) and first)
            monkeypatch.setattr(catalog, "_WAIT_SECONDS", 0.01)
            passed[0] += 60.0
            try:
                assert await seen.topics() is first
                assert not continues.is_set()
            finally:
                continues.set()

    asyncio.run(work())
