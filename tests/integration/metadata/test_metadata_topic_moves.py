"""Moves of the segments into a metadata topic and back, beside processes that run all the same."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from servers.real_kafka import RealKafka
from support.clocks import ManualClock
from support.metadata_stores import (
    DELETING,
    FINISHED,
    ORDERS_0,
    a_segment,
    a_step,
    add_and_bring_to,
    sqlite_store,
    topic_store,
)
from tiered_storage.errors import ConfigurationError, MetadataMissingError
from tiered_storage.remote_log.metadata.sql.topic_segments import read_metadata_topic
from tiered_storage.remote_log.metadata.topic import moving
from tiered_storage.remote_log.metadata.topic.moving import move_into_database, move_into_topic
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opens(real_kafka: RealKafka, tmp_path: Path, clock: ManualClock) -> Callable[[str], TopicMetadataStore]:
    """Opens the same store on a host by its name, which has a cache of its own."""

    def opened(host: str) -> TopicMetadataStore:
        changed = {"cache_directory": tmp_path / host}
        return topic_store(real_kafka.bootstrap_servers, tmp_path, clock, **changed)

    return opened


def finished(store: Any, start: int, owner: str) -> RemoteLogSegmentMetadata:
    """Copy a segment as a run of its own, which releases its lease; return it."""
    lease = store.leases.acquire(ORDERS_0, owner, 60_000)
    segment = add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED)
    store.leases.release(lease)
    return segment


def listed(store: Any) -> list[RemoteLogSegmentMetadata]:
    return list(store.segments.list_remote_log_segments(ORDERS_0))


def test_a_move_back_has_what_another_host_finished_meanwhile(
    opens: Callable[[str], TopicMetadataStore], tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opens("running")) as running, closing(opens("moving")) as mover:
        copied = [finished(running, 0, "run-1")]
        catch_up = TopicState.catch_up

        def and_then_copies(state: TopicState, partitions: Collection[int] | None = None) -> None:
            catch_up(state, partitions)
            if len(copied) == 1:
                copied.append(finished(running, 10, "run-2"))

        monkeypatch.setattr(TopicState, "catch_up", and_then_copies)
        assert move_into_database(mover, clock).segments == 2

        for call in (lambda: listed(running), lambda: finished(running, 20, "run-3")):
            with pytest.raises(MetadataMissingError, match="not in metadata topic"):
                call()
    with sqlite_store(tmp_path, clock) as after:
        assert listed(after) == copied


def test_a_write_that_was_under_way_during_the_move_back_is_no_success(
    opens: Callable[[str], TopicMetadataStore], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was paused until its lease ended, so nothing hindered the move."""
    with closing(opens("running")) as running, closing(opens("moving")) as mover:
        lease = running.leases.acquire(ORDERS_0, "run-1", 60_000)
        segment = add_and_bring_to(running, a_segment(lease), lease, FINISHED)
        write = TopicState.write

        def paused(state: TopicState, *arguments: Any) -> Any:
            clock.now += 61_000
            assert move_into_database(mover, clock).segments == 1
            return write(state, *arguments)

        monkeypatch.setattr(TopicState, "write", paused)
        with pytest.raises(MetadataMissingError, match="not in metadata topic"):
            running.segments.update_remote_log_segment_metadata(a_step(segment, DELETING), lease)


def test_a_reader_that_runs_during_a_move_into_a_topic_gets_an_error(
    opens: Callable[[str], TopicMetadataStore], tmp_path: Path, clock: ManualClock
) -> None:
    with sqlite_store(tmp_path, clock) as before, closing(opens("moving")) as mover:
        finished(before, 0, "run-1")

        move_into_topic(mover, clock)

        with pytest.raises(MetadataMissingError, match=r"remote\.log\.metadata\.manager\.class\.name"):
            before.segments.remote_log_segment_metadata(ORDERS_0, 5)


def test_a_move_that_was_taken_back_meanwhile_deletes_nothing(
    opens: Callable[[str], TopicMetadataStore], tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs at slow brokers. Another person takes it back, and runs copy into SQL."""
    with sqlite_store(tmp_path, clock) as before:
        copied = [finished(before, 0, "run-1")]
    missing = moving._missing_deletions

    def taken_back(store: TopicMetadataStore) -> Any:
        found = missing(store)
        with closing(opens("another")) as other:
            move_into_database(other, clock)
        with sqlite_store(tmp_path, clock) as again:
            copied.append(finished(again, 10, "run-2"))
        return found

    monkeypatch.setattr(moving, "_missing_deletions", taken_back)
    with closing(opens("moving")) as mover, pytest.raises(MetadataMissingError, match="but in the database"):
        move_into_topic(mover, clock)
    with sqlite_store(tmp_path, clock) as after:
        assert listed(after) == copied


def test_a_move_is_not_taken_back_that_ended_meanwhile(
    opens: Callable[[str], TopicMetadataStore], tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking it back would forget the topic, which alone has the segments then."""
    with sqlite_store(tmp_path, clock) as before:
        copied = finished(before, 0, "run-1")

    def breaks_off(_: TopicMetadataStore) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, closing(opens("moving")) as mover:
        patched.setattr(moving, "_missing_deletions", breaks_off)
        with pytest.raises(KeyboardInterrupt):
            move_into_topic(mover, clock)

    def ended_after(connection: Any, where: str) -> Any:
        found = read_metadata_topic(connection, where)
        monkeypatch.setattr(moving, "read_metadata_topic", read_metadata_topic)
        with closing(opens("another")) as other:
            move_into_topic(other, clock)
        return found

    monkeypatch.setattr(moving, "read_metadata_topic", ended_after)
    with closing(opens("moving")) as mover, pytest.raises(ConfigurationError, match="metadata status"):
        move_into_database(mover, clock)
    with closing(opens("moving")) as store:
        assert listed(store) == [copied]


def test_segments_are_deleted_from_sql_only_if_they_arrived(
    opens: Callable[[str], TopicMetadataStore], tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite_store(tmp_path, clock) as before:
        copied = [finished(before, start, "run-1") for start in (0, 10)]
    ensure = moving._ensure_arrived

    def fails_at_the_second(store: TopicMetadataStore, batch: Any) -> None:
        ensure(store, batch)
        if copied[1] in batch:
            raise KeyboardInterrupt

    monkeypatch.setattr(moving, "ROWS_A_STATEMENT", 1)
    monkeypatch.setattr(moving, "_ensure_arrived", fails_at_the_second)
    with closing(opens("moving")) as mover, pytest.raises(KeyboardInterrupt):
        move_into_topic(mover, clock)

    monkeypatch.undo()
    with closing(opens("moving")) as mover:
        assert move_into_topic(mover, clock).segments == 2
        assert listed(mover) == copied
