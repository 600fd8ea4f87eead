"""The contract of Leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, ORDERS_1
from tiered_storage.errors import ConfigurationError, LeaseHeldError, LeaseLostError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases
from tiered_storage.remote_log.model import Lease, TopicIdPartition


@pytest.fixture
def leases(store: MetadataStore) -> Leases:
    return store.leases


def test_a_free_lease_is_granted(leases: Leases, clock: ManualClock) -> None:
    assert leases.acquire(ORDERS_0, "run-1", 60_000) == Lease(ORDERS_0, "run-1", 1, clock.now + 60_000)


def test_a_refusal_names_the_holder_and_the_end_of_its_lease(leases: Leases, clock: ManualClock) -> None:
    clock.now = 1_700_000_000_000
    leases.acquire(ORDERS_0, "run-1", 60_000)

    with pytest.raises(LeaseHeldError, match=r"orders-0: run-1 .*2023-11-14 22:14:20") as refused:
        leases.acquire(ORDERS_0, "run-2", 60_000)

    assert refused.value.retriable


def test_the_number_of_the_newest_lease_is_known_whether_it_is_held_or_not(leases: Leases, clock: ManualClock) -> None:
    assert leases.fencing_number(ORDERS_0) == 0

    leases.release(leases.acquire(ORDERS_0, "run-1", 60_000))
    assert leases.fencing_number(ORDERS_0) == 1
    leases.acquire(ORDERS_0, "run-2", 60_000)
    clock.now += 60_001
    assert leases.fencing_number(ORDERS_0) == 2
    assert leases.fencing_number(ORDERS_1) == 0


def test_leases_of_partitions_are_independent(leases: Leases) -> None:
    leases.acquire(ORDERS_0, "run-1", 60_000)
    recreated = replace(ORDERS_0, topic_id="orders-created-againAA")

    assert leases.acquire(ORDERS_1, "run-2", 60_000).owner == "run-2"
    assert leases.acquire(recreated, "run-2", 60_000).fencing_number == 1


def test_a_lease_is_held_up_to_its_last_millisecond(leases: Leases, clock: ManualClock) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)

    clock.now = held.expires_at - 1
    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_0, "run-2", 60_000)

    clock.now = held.expires_at
    assert leases.acquire(ORDERS_0, "run-2", 60_000).fencing_number == 2


def test_an_owner_takes_over_from_its_own_dead_attempt(leases: Leases) -> None:
    dead = leases.acquire(ORDERS_0, "run-1", 60_000)
    retry = leases.acquire(ORDERS_0, "run-1", 60_000)

    assert retry.fencing_number == dead.fencing_number + 1
    leases.check(retry)
    with pytest.raises(LeaseLostError):
        leases.check(dead)


def test_fencing_numbers_rise_whatever_happens(leases: Leases, clock: ManualClock) -> None:
    numbers = []
    for owner in ("run-1", "run-1", "run-2", "run-3"):
        lease = leases.acquire(ORDERS_0, owner, 60_000)
        numbers.append(lease.fencing_number)
        if owner == "run-2":
            leases.release(lease)
        elif len(numbers) > 1:
            clock.now = lease.expires_at

    assert numbers == [1, 2, 3, 4]


def test_a_refused_acquisition_leaves_the_holder_alone(leases: Leases) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)

    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_0, "run-2", 60_000)

    leases.check(held)


def test_a_heartbeat_prolongs_a_lease(leases: Leases, clock: ManualClock) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)
    clock.now += 50_000

    prolonged = leases.heartbeat(held, 60_000)

    assert prolonged == replace(held, expires_at=clock.now + 60_000)
    clock.now = held.expires_at + 1
    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_0, "run-2", 60_000)


def test_a_heartbeat_revives_an_expired_lease_that_nobody_took(leases: Leases, clock: ManualClock) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)
    clock.now = held.expires_at + 1

    leases.check(held)
    leases.heartbeat(held, 60_000)

    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_0, "run-2", 60_000)


def test_a_heartbeat_of_a_lease_that_was_taken_over_is_refused(leases: Leases, clock: ManualClock) -> None:
    lost = leases.acquire(ORDERS_0, "run-1", 60_000)
    clock.now = lost.expires_at
    holder = leases.acquire(ORDERS_0, "run-2", 60_000)

    with pytest.raises(LeaseLostError, match="taken over by run-2"):
        leases.heartbeat(lost, 60_000)
    with pytest.raises(LeaseLostError, match="taken over by run-2"):
        leases.check(lost)

    leases.check(holder)


def test_another_owner_with_the_same_fencing_number_is_not_the_holder(leases: Leases) -> None:
    """Restored metadata granted a number again while its first holder was still at work."""
    holder = leases.acquire(ORDERS_0, "run-2", 60_000)
    zombie = replace(holder, owner="run-1")

    for call in (leases.check, lambda lease: leases.heartbeat(lease, 60_000)):
        with pytest.raises(LeaseLostError, match=r"1 of run-1 .*run-2 \(lease 1\)"):
            call(zombie)
    [refused] = leases.heartbeat_many([zombie], 60_000).refused
    assert isinstance(refused.reason, LeaseLostError)
    leases.release(zombie)
    leases.release_many([zombie])

    leases.check(holder)
    with pytest.raises(LeaseHeldError, match="run-2 works on it"):
        leases.acquire(ORDERS_0, "run-3", 60_000)


def test_a_late_heartbeat_does_not_revive_a_released_lease(leases: Leases) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)
    leases.release(held)

    with pytest.raises(LeaseLostError, match="released"):
        leases.heartbeat(held, 60_000)

    leases.acquire(ORDERS_0, "run-2", 60_000)


def test_releasing_a_lease_that_was_taken_over_does_nothing(leases: Leases, clock: ManualClock) -> None:
    lost = leases.acquire(ORDERS_0, "run-1", 60_000)
    clock.now = lost.expires_at
    holder = leases.acquire(ORDERS_0, "run-2", 60_000)

    leases.release(lost)

    leases.check(holder)
    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_0, "run-3", 60_000)


def test_releasing_twice_does_nothing(leases: Leases) -> None:
    held = leases.acquire(ORDERS_0, "run-1", 60_000)
    leases.release(held)
    leases.release(held)

    leases.check(held)


def test_an_invented_lease_is_refused(leases: Leases) -> None:
    invented = Lease(ORDERS_0, "run-1", 5, 0)

    with pytest.raises(LeaseLostError, match="never granted"):
        leases.check(invented)
    with pytest.raises(LeaseLostError, match="never granted"):
        leases.heartbeat(invented, 60_000)
    leases.release(invented)

    assert leases.acquire(ORDERS_0, "run-1", 60_000).fencing_number == 1


@pytest.mark.parametrize("duration_ms", [0, -1])
def test_a_lease_must_last_at_least_a_millisecond(leases: Leases, duration_ms: int) -> None:
    with pytest.raises(ConfigurationError, match=f"lease of {duration_ms} ms"):
        leases.acquire(ORDERS_0, "run-1", duration_ms)
    held = leases.acquire(ORDERS_0, "run-1", 60_000)
    with pytest.raises(ConfigurationError, match=f"lease of {duration_ms} ms"):
        leases.heartbeat(held, duration_ms)


def test_acquiring_many_reports_the_leases_that_others_hold(leases: Leases) -> None:
    leases.acquire(ORDERS_1, "run-1", 60_000)

    taken = leases.acquire_many([ORDERS_0, ORDERS_1, ORDERS_0], "run-2", 60_000)

    assert [lease.topic_id_partition for lease in taken.granted] == [ORDERS_0]
    (refused,) = taken.refused
    assert refused.topic_id_partition == ORDERS_1
    assert isinstance(refused.reason, LeaseHeldError)
    assert "run-1" in str(refused.reason)
    leases.check(taken.granted[0])


def test_leases_of_many_partitions_of_several_topics_do_not_mix(leases: Leases) -> None:
    several = [TopicIdPartition("a-cluster", f"id-{topic}", number, topic) for topic in "ab" for number in range(1100)]
    taken = several[:3] + several[1100:1102] + several[-1:]
    earlier = {each: leases.acquire(each, "run-1", 60_000).fencing_number for each in taken[:4]}

    first = leases.acquire_many(reversed(several), "run-2", 60_000)
    second = leases.acquire_many(several, "run-3", 60_000)

    assert [each.topic_id_partition for each in first.refused] == list(earlier)
    assert [each.topic_id_partition for each in first.granted] == [each for each in several if each not in earlier]
    assert [each.topic_id_partition for each in second.refused] == several
    assert not second.granted


def test_many_heartbeats_report_the_lost_leases(leases: Leases, clock: ManualClock) -> None:
    held = leases.acquire_many([ORDERS_0, ORDERS_1], "run-1", 60_000).granted
    leases.acquire(ORDERS_1, "run-1", 60_000)
    clock.now += 30_000

    beaten = leases.heartbeat_many(held, 60_000)

    assert beaten.granted == (replace(held[0], expires_at=clock.now + 60_000),)
    assert [refused.topic_id_partition for refused in beaten.refused] == [ORDERS_1]
    assert isinstance(beaten.refused[0].reason, LeaseLostError)


def test_releasing_many_leases_keeps_those_taken_over(leases: Leases) -> None:
    held = leases.acquire_many([ORDERS_0, ORDERS_1], "run-1", 60_000).granted
    newer = leases.acquire(ORDERS_1, "run-1", 60_000)

    leases.release_many(held)

    leases.acquire(ORDERS_0, "run-2", 60_000)
    with pytest.raises(LeaseHeldError):
        leases.acquire(ORDERS_1, "run-2", 60_000)
    leases.check(newer)


def test_calls_without_leases_do_nothing(leases: Leases) -> None:
    assert leases.acquire_many([], "run-1", 60_000).granted == ()
    assert leases.heartbeat_many([], 60_000).refused == ()
    leases.release_many([])


def test_held_leases_are_listed_longest_first(leases: Leases, clock: ManualClock) -> None:
    assert list(leases.held()) == []
    short = leases.acquire(ORDERS_0, "run-1", 60_000)
    long = leases.acquire(ORDERS_1, "run-2", 1 << 40)
    assert list(leases.held()) == [long, short]
    clock.now = short.expires_at
    assert list(leases.held()) == [long]
    leases.release(long)
    assert list(leases.held()) == []


def test_ending_a_lease_frees_it_and_fences_its_holder(leases: Leases) -> None:
    ahead = leases.acquire(ORDERS_0, "run-1", 1 << 40)

    assert leases.end(ORDERS_0, "a person") == ahead
    with pytest.raises(LeaseLostError, match=r"person \(lease 2\)"):
        leases.check(ahead)
    with pytest.raises(LeaseLostError):
        leases.heartbeat(ahead, 60_000)
    leases.release(ahead)

    assert leases.acquire(ORDERS_0, "run-2", 60_000).fencing_number == 3


def test_a_free_lease_cannot_be_ended(leases: Leases) -> None:
    assert leases.end(ORDERS_0, "a person") is None
    leases.release(leases.acquire(ORDERS_0, "run-1", 60_000))
    assert leases.end(ORDERS_0, "a person") is None
    assert leases.fencing_number(ORDERS_0) == 1
