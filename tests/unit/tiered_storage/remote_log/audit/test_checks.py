from __future__ import annotations

from pathlib import Path

from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    carry_out,
    flip_bit,
    location_of,
    segments_of,
    topic_id,
)
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING, Selection

TWO_TOPICS = {("clicks", 0): 1, ("orders", 0): 1, ("orders", 1): 1}


def results(remote_log: RemoteLogManager, topic: str = "orders") -> list[tuple[bool, int]]:
    """Return depth and number of anomalies of what is kept of a topic."""
    found = remote_log.context.safety.audit_results(CLUSTER_ID, topic_id(topic))
    return [(result.deep, result.anomalies) for result in found]


def lose(files: RemoteLogFiles, folder: str) -> None:
    next(path for path in files.objects(".log") if f"/{folder}/" in str(path)).unlink()


def test_an_audit_result_is_kept_of_every_topic(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, TWO_TOPICS)
    lose(files, "1")
    with files.open() as remote_log:
        remote_log.checks.audit()

        assert results(remote_log, "clicks") == [(False, 0)]
        assert results(remote_log) == [(False, 1)]
        [result] = remote_log.context.safety.audit_results(CLUSTER_ID, topic_id("orders"))
    assert result.audited_at == files.clock.now
    assert result.message.startswith("missing object ")


def test_a_quick_audit_clears_no_deep_audit_result_and_a_deep_one_clears_both(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1})
    data = files.objects(".log")[0]
    flip_bit(data, 100)
    with files.open() as remote_log:
        remote_log.checks.audit(deep=True)
        assert results(remote_log) == [(False, 1), (True, 1)]
        files.clock.now += 1
        remote_log.checks.audit()
        assert results(remote_log) == [(False, 0), (True, 1)]
        flip_bit(data, 100)
        files.clock.now += 1
        remote_log.checks.audit(deep=True)
        assert results(remote_log) == [(False, 0), (True, 0)]


def test_an_audit_of_some_partitions_finds_a_topic_wanting_but_never_clears_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, TWO_TOPICS)
    lose(files, "1")
    with files.open() as remote_log:
        sound, broken = (Selection("orders", frozenset({number})) for number in (0, 1))
        remote_log.checks.audit(sound)
        assert results(remote_log) == []
        remote_log.checks.audit(broken)
        assert results(remote_log) == [(False, 1)]
        files.clock.now += 1
        remote_log.checks.audit(sound)
        assert results(remote_log) == [(False, 1)]


def test_a_known_leftover_finds_no_topic_wanting(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1})
    left = files.objects(".log")[0]
    left.with_name(left.name + ".0123456789abcdef.tmp").write_bytes(b"half")
    files.clock.now += 10**12
    with files.open() as remote_log:
        assert len(remote_log.checks.audit().anomalies) == 1
        assert results(remote_log) == [(False, 0)]


def test_too_many_unknown_objects_are_held_against_the_store_until_a_whole_audit_clears_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1})
    folder = files.objects()[0].parent
    for number in range(11):
        (folder / f"{number:020}-{'A' * 21}{number % 10}.log").write_bytes(b"")
    files.clock.now += 10**12
    with files.open() as remote_log:
        remote_log.checks.audit(Selection("orders"))
        [result] = remote_log.context.safety.audit_results("", "")
        assert (result.deep, result.anomalies) == (False, 11)
        remote_log.checks.audit()
        [result] = remote_log.context.safety.audit_results("", "")
        assert (result.deep, result.anomalies) == (False, 11)

        for path in folder.glob(f"*{'A' * 21}*"):
            path.unlink()
        files.clock.now += 1
        remote_log.checks.audit(Selection("orders"), deep=True)
        [result] = remote_log.context.safety.audit_results("", "")
        assert result.anomalies == 11
        files.clock.now += 1
        remote_log.checks.audit(deep=True)
        [result] = remote_log.context.safety.audit_results("", "")
        assert (result.deep, result.anomalies) == (False, 0)


def test_an_overlap_is_named_and_finds_no_topic_wanting_so_that_trimming_continues(tmp_path: Path) -> None:
    """Nothing is missing of it, and before anything local goes every remote byte that holds it is read back."""
    topics = {"orders": {**ENABLED, "remote.deletion.allowed": False, "local.retention.bytes": 1}}
    files = a_copied_remote_log(tmp_path, topics=topics)
    with files.open() as remote_log:
        second = segments_of(remote_log)[1]
        local = files.local_segments()[1]
        again = PlannedSegment(ORDERS_0, location_of(local.log_path), 10, 19, local.size(), second.leader_epochs)
        plan = CopyPlan((again,), replacing=frozenset({second.segment_id.id}))
        assert remote_log.commit_copy(carry_out(remote_log, remote_log.begin_copy(plan, "another"))).is_whole

        found = remote_log.checks.audit(deep=True)

        assert [anomaly.kind for anomaly in found.anomalies] == [AnomalyKind.OVERLAP]
        assert results(remote_log) == [(False, 0), (True, 0)]
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert remote_log.deletions.enforce_local_retention(plans).failures == ()
    assert files.local_starts() == [30]


def test_an_overlap_does_not_hide_another_anomaly(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        second = segments_of(remote_log)[1]
        local = files.local_segments()[1]
        again = PlannedSegment(ORDERS_0, location_of(local.log_path), 10, 19, local.size(), second.leader_epochs)
        plan = CopyPlan((again,), replacing=frozenset({second.segment_id.id}))
        remote_log.commit_copy(carry_out(remote_log, remote_log.begin_copy(plan, "another")))
        next(path for path in files.objects(".log") if second.segment_id.id in path.name).unlink()

        assert remote_log.checks.audit().anomaly_count == 2
        assert results(remote_log) == [(False, 1)]
        [result] = remote_log.context.safety.audit_results(CLUSTER_ID, topic_id("orders"))
        assert result.message.startswith("missing object ")
