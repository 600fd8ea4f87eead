from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import pytest

from support.metadata_stores import ORDERS_0, ORDERS_1
from tiered_storage.errors import LeaseLostError, MetadataUnavailableError, TieredStorageError
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import GrantedLeases
from tiered_storage.remote_log.model import Lease, TopicIdPartition

FIRST, SECOND = Lease(ORDERS_0, "copy", 1, 0), Lease(ORDERS_1, "copy", 4, 0)
WAIT_SECONDS = 20
SOON = 3
"""A duration (ms) of which a third is over at once."""
NEVER = 3_000_000


class RecordingLeases:
    """Leases that count the heartbeats of each, and answer with an error where one is set."""

    def __init__(self) -> None:
        self.beats: list[tuple[Lease, int]] = []
        self.errors: dict[TopicIdPartition, TieredStorageError] = {}
        self._changed = threading.Condition()

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        with self._changed:
            self.beats.append((lease, duration_ms))
            self._changed.notify_all()
        if lease.topic_id_partition in self.errors:
            raise self.errors[lease.topic_id_partition]
        return lease

    def wait_for(self, beats: int, lease: Lease = FIRST) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(lease) >= beats, WAIT_SECONDS)

    def count(self, lease: Lease) -> int:
        return sum(one == lease for one, _ in self.beats)

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        raise NotImplementedError

    def check(self, lease: Lease) -> None:
        raise NotImplementedError

    def fencing_number(self, partition: TopicIdPartition) -> int:
        raise NotImplementedError

    def release(self, lease: Lease) -> None:
        raise NotImplementedError

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        raise NotImplementedError

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        raise NotImplementedError

    def release_many(self, held: Sequence[Lease]) -> None:
        raise NotImplementedError

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        raise NotImplementedError

    def held(self) -> Sequence[Lease]:
        raise NotImplementedError

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:
        raise NotImplementedError


def test_every_lease_is_prolonged_again_and_again_while_the_block_runs() -> None:
    leases = RecordingLeases()

    with kept_alive(leases, [FIRST, SECOND, FIRST], SOON):
        leases.wait_for(3, FIRST)
        leases.wait_for(3, SECOND)

    assert {duration for _, duration in leases.beats} == {SOON}


def test_leases_are_prolonged_once_more_at_the_end() -> None:
    leases = RecordingLeases()

    with kept_alive(leases, [FIRST, SECOND], NEVER):
        assert leases.beats == []

    assert len(leases.beats) == 2
    assert set(leases.beats) == {(FIRST, NEVER), (SECOND, NEVER)}


def test_nothing_beats_any_more_after_the_block() -> None:
    leases = RecordingLeases()

    with kept_alive(leases, [FIRST], SOON):
        leases.wait_for(1)

    assert "lease-keeper" not in {thread.name for thread in threading.enumerate()}


def test_a_lease_that_was_taken_over_is_let_go_and_the_others_are_kept() -> None:
    leases = RecordingLeases()
    leases.errors[ORDERS_0] = LeaseLostError("taken over")

    with kept_alive(leases, [FIRST, SECOND], SOON):
        leases.wait_for(4, SECOND)

    assert leases.count(FIRST) == 1


def test_a_metadata_store_that_is_away_is_asked_again() -> None:
    leases = RecordingLeases()
    leases.errors[ORDERS_0] = MetadataUnavailableError("locked")

    with kept_alive(leases, [FIRST], SOON):
        leases.wait_for(2)
        leases.errors.clear()
        leases.wait_for(leases.count(FIRST) + 2)


def test_an_error_of_the_block_passes_and_ends_the_thread() -> None:
    leases = RecordingLeases()

    with pytest.raises(KeyError), kept_alive(leases, [FIRST], NEVER):
        raise KeyError

    assert leases.count(FIRST) == 1
    assert "lease-keeper" not in {thread.name for thread in threading.enumerate()}


def test_without_leases_there_is_nothing_to_keep() -> None:
    leases = RecordingLeases()

    with kept_alive(leases, [], SOON):
        pass

    assert leases.beats == []


def test_work_that_was_given_up_holds_no_lease_for_ever() -> None:
    leases = RecordingLeases()
    is_wanted = threading.Event()
    is_wanted.set()
    with kept_alive(leases, [FIRST], SOON, is_wanted.is_set):
        leases.wait_for(1)
        is_wanted.clear()
        keepers = [thread for thread in threading.enumerate() if thread.name == "lease-keeper"]
        for keeper in keepers:
            keeper.join(WAIT_SECONDS)
            assert not keeper.is_alive()
        beats = leases.count(FIRST)
    # Once more at the end: what is committed of it needs some time.
    assert leases.count(FIRST) == beats + 1
