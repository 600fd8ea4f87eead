from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    held_by,
    offsets_read,
    partition_of,
    segments_of,
    states_of,
    unsynced,
)
from tiered_storage.errors import (
    DeletionRefusedError,
    MetadataUnavailableError,
    RemoteMetadataError,
    UnknownPartitionError,
)
from tiered_storage.gateway.deletions import remote_deletions
from tiered_storage.gateway.deletions.remote_deletions import AT_ONCE, LogStart, RemoteDeletions, RemoteLogChanges
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import PartitionDeleteState, TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, snapshot_partition
from tiered_storage.remote_log.retention import expiry_planning
from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
from tiered_storage.remote_log.retention.expiry import ExpiryPlan

MARKED, FINISHED = "DELETE_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


@pytest.fixture
def remote_log(files: RemoteLogFiles) -> Iterator[RemoteLogManager]:
    with files.open() as opened:
        yield opened


def test_the_global_log_start_moves_and_segments_below_it_are_marked(remote_log: RemoteLogManager) -> None:
    changes = RemoteLogChanges(remote_log.context)

    assert changes.delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}
    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15
    assert states_of(remote_log) == [(0, MARKED), (10, FINISHED), (20, FINISHED)]
    assert changes.delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}
    assert changes.delete_records({ORDERS_0: 3}) == {ORDERS_0: 15}
    assert states_of(remote_log) == [(0, MARKED), (10, FINISHED), (20, FINISHED)]


def test_a_deletion_is_planned_on_the_snapshot_that_showed_its_need_and_again_under_its_lease(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_under_lease: list[bool] = []

    def noted(*arguments: Any) -> PartitionSnapshot:
        planned_under_lease.append(bool(remote_log.context.leases.held()))
        return snapshot_partition(*arguments)

    monkeypatch.setattr(expiry_planning, "snapshot_partition", noted)

    assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}
    assert planned_under_lease == [True]


def test_while_another_run_has_the_partition_nothing_changes(remote_log: RemoteLogManager) -> None:
    changes = RemoteLogChanges(remote_log.context)
    lease = held_by(remote_log, "a copy")

    found = changes.delete_records({ORDERS_0: 15})
    remote_log.context.leases.release(lease)

    assert isinstance(found[ORDERS_0], RemoteMetadataError)
    assert "a copy" in str(found[ORDERS_0])
    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
    assert changes.delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}


def test_one_partition_that_fails_does_not_hold_up_another(tmp_path: Path) -> None:
    other = partition_of("orders", 1)
    with a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}).open() as remote_log:
        held_by(remote_log, "a copy")

        found = RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15, other: 15})

    assert isinstance(found[ORDERS_0], RemoteMetadataError)
    assert found[other] == 15


def test_records_of_a_topic_that_is_no_longer_there_stay(files: RemoteLogFiles, remote_log: RemoteLogManager) -> None:
    shutil.rmtree(files.root / "logs" / "orders-0")

    found = RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15})

    assert isinstance(found[ORDERS_0], UnknownPartitionError)
    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


def test_without_the_permission_nothing_changes(tmp_path: Path) -> None:
    kept = {"remote.storage.enable": True, "remote.deletion.allowed": False}
    with a_copied_remote_log(tmp_path, topics={"orders": kept}).open() as remote_log:
        found = RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15})

        assert isinstance(found[ORDERS_0], DeletionRefusedError)
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, FINISHED)]


def test_nothing_is_done_about_what_never_was_remote(remote_log: RemoteLogManager) -> None:
    changes = RemoteLogChanges(remote_log.context)
    unknown = replace(ORDERS_0, topic_id=random_uuid())

    assert changes.delete_records({unknown: 15}) == {unknown: None}
    assert changes.delete_topics([unknown]) == {}
    assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is None


def test_the_source_is_not_asked_about_what_never_was_remote(
    files: RemoteLogFiles, remote_log: RemoteLogManager
) -> None:
    shutil.rmtree(files.log_directory)
    unknown = replace(ORDERS_0, topic_id=random_uuid(), topic="others")

    assert RemoteLogChanges(remote_log.context).delete_records({unknown: 15}) == {unknown: None}


def brokers_delete(files: RemoteLogFiles, before: int) -> None:
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        writer.log("orders", 0).delete_records(before)


def test_records_deleted_during_the_first_copy_do_not_come_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        brokers_delete(files, 15)

        while_copied = RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15})
        remote_log.commit_copy(outcomes)

        assert isinstance(while_copied[ORDERS_0], RemoteMetadataError)
        assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15


def test_a_copy_that_lost_its_lease_does_not_bring_deleted_records_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        brokers_delete(files, 15)
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1

        assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15}) == {ORDERS_0: 15}
        remote_log.commit_copy(outcomes)

        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15


def test_an_offset_before_all_that_a_first_copy_has_makes_no_gap(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    brokers_delete(files, 15)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        first = min(one.start_offset for one in segments_of(remote_log))

        assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 5}) == {ORDERS_0: first}
        remote_log.commit_copy(outcomes)

        assert first > 5
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == first


def test_the_first_copy_begins_where_records_were_deleted_before_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        brokers_delete(files, 15)
        assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15}) == {ORDERS_0: None}
        assert remote_log.context.segments.log_start_offset(ORDERS_0) is None, (
            "brokers may delete more before the first copy"
        )
        assert copy(remote_log).is_whole

        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15
        assert offsets_read(remote_log, 15) == list(range(15, 35))


def test_deleting_records_that_are_not_remote_needs_no_permission(tmp_path: Path) -> None:
    kept = {"remote.storage.enable": True, "remote.deletion.allowed": False}
    files = a_remote_log(tmp_path, topics={"orders": kept})
    with files.open() as remote_log:
        brokers_delete(files, 15)

        assert RemoteLogChanges(remote_log.context).delete_records({ORDERS_0: 15}) == {ORDERS_0: None}


def test_a_deleted_topics_remote_data_are_marked_for_deletion(
    files: RemoteLogFiles, remote_log: RemoteLogManager
) -> None:
    shutil.rmtree(files.root / "logs" / "orders-0")

    assert RemoteLogChanges(remote_log.context).delete_topics([ORDERS_0]) == {ORDERS_0: None}
    assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.MARKED


def test_topics_that_the_source_still_shows_are_waited_for_together_and_stay(tmp_path: Path) -> None:
    waits: list[float] = []
    other = partition_of("payments", 0)
    with a_copied_remote_log(tmp_path, {("orders", 0): 1, ("payments", 0): 1}).open() as remote_log:
        found = RemoteLogChanges(remote_log.context, sleep=waits.append).delete_topics([ORDERS_0, other])

        assert [str(found[each]).count("is tiered") for each in (ORDERS_0, other)] == [1, 1]
        assert sum(waits) == pytest.approx(10, abs=0.5)
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is None


def test_two_runs_of_one_process_do_not_share_leases(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, owners = RemoteLogChanges(remote_log.context), list[str]()
    mark = RemoteLogDeletions.mark_expired

    def noted(deletions: RemoteLogDeletions, plans: Iterable[ExpiryPlan], owner: str) -> object:
        owners.append(owner)
        return mark(deletions, plans, owner)

    monkeypatch.setattr(RemoteLogDeletions, "mark_expired", noted)
    changes.delete_records({ORDERS_0: 5})
    changes.delete_records({ORDERS_0: 15})

    assert len(set(owners)) == 2


def test_a_deletion_ends_though_its_client_is_gone(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_proceed, ended = threading.Event(), threading.Event(), threading.Event()
    work = RemoteLogChanges.delete_records

    def held(changes: RemoteLogChanges, wanted: Mapping[object, int]) -> dict[object, LogStart]:
        begun.set()
        assert may_proceed.wait(60)
        try:
            return work(changes, wanted)  # type: ignore[arg-type, return-value] # passed on as it is
        finally:
            ended.set()

    monkeypatch.setattr(RemoteLogChanges, "delete_records", held)

    async def run() -> None:
        deletions = RemoteDeletions(remote_log.context, GatewayMetrics())
        task = asyncio.ensure_future(deletions.delete_records({ORDERS_0: 15}))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_proceed.set()
        assert await asyncio.to_thread(ended.wait, 60)
        await asyncio.to_thread(deletions.close)

    asyncio.run(run())

    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15


@dataclass
class Held:
    """Deletions of which the first ones wait until they may continue."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_proceed: threading.Event = field(default_factory=threading.Event)

    async def fill(self, deletions: RemoteDeletions) -> list[asyncio.Future[object]]:
        """Let as many wait as run at once."""
        running: list[asyncio.Future[object]] = [
            asyncio.ensure_future(deletions.delete_records({ORDERS_0: 0})) for _ in range(AT_ONCE)
        ]
        for _ in running:
            assert await asyncio.to_thread(self.begun.acquire, timeout=60)
        return running


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found, work = Held(), RemoteLogChanges.delete_records

    def wait(changes: RemoteLogChanges, wanted: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, LogStart]:
        found.begun.release()
        assert found.may_proceed.wait(60)
        return work(changes, wanted)

    monkeypatch.setattr(RemoteLogChanges, "delete_records", wait)
    return found


def counted(metrics: GatewayMetrics, api: str, outcome: str) -> float | None:
    labels = {"api": api, "outcome": outcome}
    return metrics.registry.get_sample_value("remote_log_gateway_remote_deletions_total", labels)


def test_an_abandoned_deletion_is_not_started_but_logged(
    remote_log: RemoteLogManager, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        deletions = RemoteDeletions(remote_log.context, GatewayMetrics())
        running = await held.fill(deletions)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(deletions.delete_records({ORDERS_0: 15}), 0.01)
        held.may_proceed.set()
        await asyncio.gather(*running)
        await asyncio.to_thread(deletions.close)

    asyncio.run(run())

    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
    assert "orders-0: a client deleted the records before offset 15" in caplog.text


def test_too_many_deletions_are_refused_and_logged(
    remote_log: RemoteLogManager, held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_deletions, "MOST_WAITING", AT_ONCE)
    metrics = GatewayMetrics()

    async def run() -> object:
        deletions = RemoteDeletions(remote_log.context, metrics)
        running = await held.fill(deletions)
        refused = await deletions.delete_records({ORDERS_0: 15})
        await deletions.delete_topics([ORDERS_0])
        held.may_proceed.set()
        await asyncio.gather(*running)
        await asyncio.to_thread(deletions.close)
        return refused[ORDERS_0]

    assert isinstance(asyncio.run(run()), RemoteMetadataError)
    assert counted(metrics, "DeleteRecords", "left") == counted(metrics, "DeleteTopics", "left") == 1
    assert f"'tiered-storage delete-topic orders --topic-id {ORDERS_0.topic_id}'" in caplog.text


def test_at_the_end_what_waits_is_not_begun_and_what_runs_stops_before_the_next_partition(
    remote_log: RemoteLogManager, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[object]:
        deletions = RemoteDeletions(remote_log.context, GatewayMetrics())
        running = [asyncio.ensure_future(deletions.delete_records({ORDERS_0: 15})) for _ in range(AT_ONCE)]
        for _ in running:
            assert await asyncio.to_thread(held.begun.acquire, timeout=60)
        waiting = asyncio.ensure_future(deletions.delete_topics([ORDERS_0]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(deletions.close))
        await asyncio.wait([waiting], timeout=60)
        held.may_proceed.set()
        await closing
        deletions.lose_sight({"orders"}, "a test")
        return [(await each)[ORDERS_0] for each in running]

    assert {str(each) for each in asyncio.run(run())} == {"the gateway ends"}
    assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
    assert f"'tiered-storage delete-topic orders --topic-id {ORDERS_0.topic_id}'" in caplog.text
    assert "topics orders: a test; the gateway ends" in caplog.text


def test_of_topics_that_are_perhaps_deleted_those_with_remote_data_are_logged(
    remote_log: RemoteLogManager, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = GatewayMetrics()
    deletions = RemoteDeletions(remote_log.context, metrics)

    async def run() -> None:
        deletions.lose_sight({"orders", "others"}, "the connection ended")
        await deletions.delete_topics([])
        await asyncio.to_thread(deletions.close)

    asyncio.run(run())

    assert counted(metrics, "DeleteTopics", "left") == 1
    assert f"'tiered-storage delete-topic orders --topic-id {ORDERS_0.topic_id}'" in caplog.text
    assert "others" not in caplog.text


@pytest.mark.parametrize("fault", [OSError("disk"), MetadataUnavailableError("locked")])
def test_a_topic_that_cannot_be_looked_up_is_logged(
    remote_log: RemoteLogManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    def fails(_: RemoteLogChanges, topics: object) -> NoReturn:
        raise fault

    monkeypatch.setattr(RemoteLogChanges, "delete_topics", fails)

    async def run() -> None:
        deletions = RemoteDeletions(remote_log.context, GatewayMetrics())
        await deletions.delete_topics([ORDERS_0])
        await asyncio.to_thread(deletions.close)

    asyncio.run(run())

    assert f"'tiered-storage delete-topic orders --topic-id {ORDERS_0.topic_id}'" in caplog.text
    assert str(fault) in caplog.text


def test_during_a_stop_a_deleted_topics_remote_data_stay(files: RemoteLogFiles, remote_log: RemoteLogManager) -> None:
    shutil.rmtree(files.root / "logs" / "orders-0")
    remote_log.context.safety.stop("a test", "somebody")

    found = RemoteLogChanges(remote_log.context).delete_topics([ORDERS_0])

    assert isinstance(found[ORDERS_0], DeletionRefusedError)
    assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is None


def test_while_the_store_is_away_a_deleted_topics_remote_data_stay(
    files: RemoteLogFiles, remote_log: RemoteLogManager
) -> None:
    shutil.rmtree(files.root / "logs" / "orders-0")
    files.store.rename(files.store.with_name("elsewhere"))

    found = RemoteLogChanges(remote_log.context).delete_topics([ORDERS_0])

    assert found[ORDERS_0] is not None
    assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is None


def test_what_is_done_and_what_is_left_is_counted_and_logged(
    remote_log: RemoteLogManager, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = GatewayMetrics()
    deletions = RemoteDeletions(remote_log.context, metrics)

    async def run() -> None:
        await deletions.delete_records({ORDERS_0: 15})
        remote_log.context.safety.stop("a test", "somebody")
        with caplog.at_level(logging.ERROR):
            await deletions.delete_records({ORDERS_0: 20})
        await asyncio.to_thread(deletions.close)

    asyncio.run(run())

    assert [counted(metrics, "DeleteRecords", each) for each in ("done", "left")] == [1, 1]
    assert "orders-0: a client deleted" in caplog.text
    assert "somebody stopped all deletions" in caplog.text
