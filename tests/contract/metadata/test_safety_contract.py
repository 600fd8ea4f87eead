"""The contract of Safety."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.metadata_stores import MetadataStoreOpener
from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, ORDERS_1
from tiered_storage.remote_log.metadata.metadata_store import Generation, MetadataStore
from tiered_storage.remote_log.metadata.safety import (
    LONGEST_TEXT,
    AuditResult,
    DeletionFailure,
    Safety,
    Stop,
)
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.selection import Selection

CLICKS_2 = TopicIdPartition("cluster-1", "topic-id-of-clicksAAAA", 2, "clicks")
QUICK = AuditResult("cluster-1", "topic-id-of-ordersAAAA", False, 2**41, 3, "3 missing objects")
A, B = (RemoteLogSegmentId(ORDERS_0, name) for name in ("a", "b"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(2**41 + 10)


@pytest.fixture
def safety(store: MetadataStore) -> Safety:
    return store.safety


def test_new_metadata_have_no_stop_audit_result_or_failure(safety: Safety) -> None:
    assert safety.stopped() is None
    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == []
    assert list(safety.failures()) == []


def test_deletions_are_stopped_until_the_stop_is_lifted(safety: Safety, clock: ManualClock) -> None:
    safety.stop("a wrong mount", "ada")
    first = safety.stopped()
    clock.now += 5
    safety.stop("the audit of tonight", "grace")

    assert first == Stop("a wrong mount", "ada", clock.now - 5)
    assert safety.stopped() == Stop("the audit of tonight", "grace", clock.now)

    safety.lift("ada")
    assert safety.stopped() is None
    safety.lift("ada")
    safety.stop("", "ada")
    assert safety.stopped() == Stop("", "ada", clock.now)


def test_a_lift_leaves_a_stop_that_was_made_after_it_was_asked_for(safety: Safety, clock: ManualClock) -> None:
    asked_at = clock.now
    clock.now += 5
    safety.stop("a second thought", "grace")

    safety.lift("ada", before=asked_at)

    assert safety.stopped() == Stop("a second thought", "grace", clock.now)
    safety.lift("ada", before=clock.now)
    assert safety.stopped() is None


def test_lifting_without_a_stop_does_nothing(safety: Safety) -> None:
    safety.lift("ada")
    assert safety.stopped() is None


def test_every_connection_sees_the_stop(
    safety: Safety, opener: MetadataStoreOpener, tmp_path: Path, clock: ManualClock
) -> None:
    with opener(tmp_path, clock) as other:
        safety.stop("a wrong mount", "ada")
        assert other.safety.stopped() == Stop("a wrong mount", "ada", clock.now)


def test_an_audit_result_replaces_the_earlier_one_of_its_depth(safety: Safety) -> None:
    deep = replace(QUICK, deep=True, anomalies=0, message="")
    safety.put_audit_result(deep)
    safety.put_audit_result(QUICK)
    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == [QUICK, deep]

    later = replace(QUICK, audited_at=QUICK.audited_at + 1, anomalies=0, message="")
    safety.put_audit_result(later)
    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == [later, deep]

    safety.put_audit_result(replace(later, message="recorded later"))
    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA")[0].message == "recorded later"


def test_an_audit_that_began_earlier_and_ends_later_changes_nothing(safety: Safety) -> None:
    safety.put_audit_result(QUICK)
    safety.put_audit_result(replace(QUICK, audited_at=QUICK.audited_at - 1, anomalies=0))

    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == [QUICK]


def test_audit_results_are_those_of_one_topic_or_of_the_whole_store(safety: Safety) -> None:
    whole = replace(QUICK, topic_id="")
    elsewhere = replace(QUICK, cluster_id="cluster-2")
    for result in (QUICK, whole, elsewhere):
        safety.put_audit_result(result)

    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == [QUICK]
    assert safety.audit_results("cluster-1", "") == [whole]
    assert safety.audit_results("cluster-2", "topic-id-of-ordersAAAA") == [elsewhere]


def test_failures_are_counted_from_the_first_to_the_last(safety: Safety) -> None:
    safety.note_failures({A: "refused"}, 1_000)
    safety.note_failures({A: "out of reach", B: "refused"}, 2_000)

    assert list(safety.failures()) == [
        DeletionFailure(A, 2, 1_000, 2_000, "out of reach"),
        DeletionFailure(B, 1, 2_000, 2_000, "refused"),
    ]


def test_a_cleared_failure_is_counted_from_one_again(safety: Safety) -> None:
    safety.note_failures({A: "refused", B: "refused"}, 1_000)
    safety.forget_failures([A, RemoteLogSegmentId(ORDERS_1, "b"), A])
    safety.forget_failures([])
    safety.note_failures({}, 1_500)

    assert [failure.segment_id for failure in safety.failures()] == [B]
    safety.note_failures({A: "again"}, 3_000)
    assert next(safety.failures()) == DeletionFailure(A, 1, 3_000, 3_000, "again")


def test_failures_can_be_those_of_a_selection(safety: Safety) -> None:
    ids = [RemoteLogSegmentId(partition, "a") for partition in (CLICKS_2, ORDERS_0, ORDERS_1)]
    safety.note_failures(dict.fromkeys(ids, "refused"), 1_000)

    found = [failure.segment_id.topic_id_partition for failure in safety.failures()]
    assert [str(partition) for partition in found] == ["clicks-2", "orders-0", "orders-1"]
    assert [failure.segment_id for failure in safety.failures(Selection("orders"))] == ids[1:]
    assert [failure.segment_id for failure in safety.failures(Selection(".*", frozenset({1, 2})))] == [ids[0], ids[2]]


def test_more_failures_than_fit_in_one_statement_are_recorded_listed_and_cleared(safety: Safety) -> None:
    ids = [
        RemoteLogSegmentId(partition, f"{number:04}") for partition in (ORDERS_0, ORDERS_1) for number in range(1_250)
    ]
    safety.note_failures(dict.fromkeys(ids, "refused"), 1_000)
    safety.note_failures(dict.fromkeys(ids, "refused"), 2_000)

    listed = list(safety.failures())
    assert [failure.segment_id for failure in listed] == ids
    assert {failure.attempts for failure in listed} == {2}
    safety.forget_failures(ids[:2_499])
    assert [failure.segment_id for failure in safety.failures()] == ids[2_499:]


def test_an_unfinished_listing_does_not_block_writers(safety: Safety) -> None:
    safety.note_failures({A: "refused", B: "refused"}, 1_000)
    listing = safety.failures()
    next(listing)

    safety.forget_failures([A, B])

    assert list(safety.failures()) == []


def test_a_long_text_is_truncated(safety: Safety) -> None:
    safety.stop("x" * 10_000, "ada")
    safety.put_audit_result(replace(QUICK, message="y" * 10_000))
    safety.note_failures({A: "z" * 10_000}, 1_000)

    stopped = safety.stopped()
    assert stopped is not None
    for text in (
        stopped.reason,
        safety.audit_results("cluster-1", "topic-id-of-ordersAAAA")[0].message,
        next(safety.failures()).error,
    ):
        assert (len(text), text[-1]) == (LONGEST_TEXT, "…")


def test_control_characters_are_removed_from_texts(safety: Safety) -> None:
    evil = "\x1b[2Jgröße\r\nall is well\u202e"
    safety.stop(evil, evil)
    safety.put_audit_result(replace(QUICK, message=evil))
    safety.note_failures({A: evil}, 1_000)

    stopped = safety.stopped()
    assert stopped is not None
    message = safety.audit_results("cluster-1", "topic-id-of-ordersAAAA")[0].message
    for text in (stopped.reason, stopped.stopped_by, message, next(safety.failures()).error):
        assert text == " [2Jgröße  all is well "


def test_only_a_decision_with_an_effect_begins_a_generation(opener: MetadataStoreOpener, tmp_path: Path) -> None:
    with opener(tmp_path, ManualClock()) as store:
        first = store.generation.read()
        assert (first.number, first.next_token) == (0, None)
        store.safety.stop("why", "ada")
        begun = store.generation.read().next_token
        assert begun is not None
        store.generation.confirm(Generation(1, "another"))
        assert store.generation.read().number == 0
        store.generation.confirm(Generation(1, begun))
        assert store.generation.read() == Generation(1, begun)
        store.safety.stop("again", "bob")
        store.safety.put_audit_result(AuditResult("c", "t", False, 1, 0))
        assert store.generation.read() == Generation(1, begun)
        store.safety.put_audit_result(AuditResult("c", "t", False, 2, 3))
        store.safety.put_audit_result(AuditResult("c", "t", False, 3, 4))
    with opener(tmp_path, ManualClock()) as store:
        second = store.generation.read()
        assert (second.number, second.token) == (1, begun)
        store.safety.lift("ada")
        store.generation.confirm(Generation(2, str(second.next_token)))
        # The lift came after the second generation had begun, so that a third follows.
        assert store.generation.read().next_token not in {None, second.next_token}
        store.generation.claim(7)
        assert (store.generation.read().number, store.generation.read().token) == (7, "")


def test_an_audit_result_from_the_future_is_replaced(safety: Safety) -> None:
    ahead = replace(QUICK, audited_at=QUICK.audited_at + 10**12)
    safety.put_audit_result(ahead)
    safety.put_audit_result(replace(QUICK, anomalies=0))

    assert safety.audit_results("cluster-1", "topic-id-of-ordersAAAA") == [replace(QUICK, anomalies=0)]
