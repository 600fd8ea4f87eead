from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import ENABLED, NOW, ORDERS_0, RemoteLogFiles, a_copied_remote_log
from tiered_storage.clock import as_date
from tiered_storage.errors import DeletionRefusedError, StoreMismatchError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditResult
from tiered_storage.remote_log.retention.permission.deletion_permissions import (
    WHOLE_STORE,
    DeletionKind,
    DeletionPermissions,
    store_audit_result,
)
from tiered_storage.remote_log.selection import EVERYTHING

LOCAL, REMOTE, LEFTOVER = DeletionKind
ALLOWED = Topic(
    ORDERS_0.cluster_id,
    ORDERS_0.topic_id,
    "orders",
    remote_storage_enable=True,
    local_deletion_allowed=True,
    remote_deletion_allowed=True,
)


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("orders", 0): 1})


@pytest.fixture
def remote_log(files: RemoteLogFiles) -> Iterator[RemoteLogManager]:
    with files.open() as opened:
        yield opened


def refused(permissions: DeletionPermissions) -> dict[DeletionKind, str]:
    """Return which kinds of deletion are refused, and why."""
    why = {}
    for kind in DeletionKind:
        try:
            permissions.ensure(ORDERS_0, kind)
        except DeletionRefusedError as error:
            why[kind] = str(error)
    return why


def result(anomalies: int, *, deep: bool = False, audited_at: int = 1_000) -> AuditResult:
    return AuditResult(ORDERS_0.cluster_id, ORDERS_0.topic_id, deep, audited_at, anomalies, f"{anomalies} things")


def test_the_gate_is_open_for_an_allowed_topic_that_was_never_audited(remote_log: RemoteLogManager) -> None:
    assert refused(remote_log.deletions.permissions) == {}


def test_a_stop_refuses_every_kind_of_deletion(remote_log: RemoteLogManager) -> None:
    remote_log.context.safety.stop("a wrong mount", "ada")

    permissions = remote_log.deletions.permissions
    assert set(refused(permissions)) == set(DeletionKind)
    assert mentions(refused(permissions)[LOCAL], "ada", "2023-11-15 ", "a wrong mount", "stop-deletions --lift")
    with pytest.raises(DeletionRefusedError, match="a wrong mount"):
        permissions.ensure_running()

    remote_log.context.safety.lift("ada")
    permissions.ensure_running()
    assert refused(permissions) == {}


@pytest.mark.parametrize(
    ("topic", "kinds"),
    [
        (replace(ALLOWED, local_deletion_allowed=False), {LOCAL}),
        (replace(ALLOWED, remote_deletion_allowed=False), {REMOTE}),
        (replace(ALLOWED, remote_storage_enable=False), {LOCAL}),
        (Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders"), {LOCAL, REMOTE}),
    ],
    ids=["no local right", "no remote right", "disabled", "nothing allowed"],
)
def test_each_kind_needs_its_own_right(remote_log: RemoteLogManager, topic: Topic, kinds: set[DeletionKind]) -> None:
    remote_log.context.topics.put(topic)

    permissions = remote_log.deletions.permissions
    assert set(refused(permissions)) == kinds
    assert {kind for kind in DeletionKind if not permissions.is_allowed(ORDERS_0, kind)} == kinds


def test_nothing_is_deleted_from_a_store_that_is_another_one(
    files: RemoteLogFiles, remote_log: RemoteLogManager
) -> None:
    (files.store / "store.json").unlink()
    for kind in DeletionKind:
        with pytest.raises(StoreMismatchError):
            remote_log.deletions.permissions.ensure(ORDERS_0, kind)


def test_an_audit_that_found_something_stops_trimming_alone(remote_log: RemoteLogManager) -> None:
    remote_log.context.safety.put_audit_result(result(2))
    why = refused(remote_log.deletions.permissions)
    assert set(why) == {LOCAL}
    assert mentions(why[LOCAL], "audit", "topic orders")
    assert "2 things" in why[LOCAL]

    remote_log.context.safety.put_audit_result(result(0, audited_at=2_000))
    assert refused(remote_log.deletions.permissions) == {}


def test_a_clean_quick_audit_does_not_clear_what_a_deep_audit_found(remote_log: RemoteLogManager) -> None:
    remote_log.context.safety.put_audit_result(result(1, deep=True))
    remote_log.context.safety.put_audit_result(result(0, audited_at=2_000))

    assert "the last deep audit" in refused(remote_log.deletions.permissions)[LOCAL]


def test_too_many_unreferenced_objects_stop_every_kind_of_deletion(remote_log: RemoteLogManager) -> None:
    remote_log.context.safety.put_audit_result(store_audit_result(500, 1_000, 1, 1_000, deep=False))

    why = refused(remote_log.deletions.permissions)
    assert set(why) == set(DeletionKind)
    assert "500 of 1000 objects" in why[LEFTOVER]
    assert mentions(why[REMOTE], "audit of the store")


@pytest.mark.parametrize(
    ("unreferenced", "objects", "percent", "stops"),
    [
        (0, 0, 1, False),
        (10, 10, 1, False),
        (11, 11, 1, True),
        (11, 11, 100, False),
        (11, 1_100, 1, False),
        (11, 1_099, 1, True),
        (11, 10**9, 0, True),
        (10, 10**9, 0, False),
    ],
)
def test_only_a_large_share_of_many_unreferenced_objects_stops_deletions(
    unreferenced: int, objects: int, percent: int, stops: bool
) -> None:
    found = store_audit_result(unreferenced, objects, percent, 1_000, deep=True)

    assert (found.cluster_id, found.topic_id, found.deep, found.audited_at) == (WHOLE_STORE, WHOLE_STORE, True, 1_000)
    assert (found.anomalies > 0) is stops
    assert bool(found.message) is stops


@pytest.mark.parametrize("moment", [10**18, -(10**18)])
def test_a_time_that_no_calendar_has_is_reported_all_the_same(moment: int) -> None:
    assert as_date(moment) == f"{moment} ms"


def test_a_plan_leaves_out_what_an_audit_forbids_and_reports_it(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "retention.bytes": 1, "local.retention.bytes": 0}}
    with a_copied_remote_log(tmp_path, topics=topics).open() as remote_log:
        assert len(remote_log.deletions.plan_local_retention(EVERYTHING, NOW)[0]) == 1
        assert len(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0]) == 1

        remote_log.context.safety.put_audit_result(result(1))
        plans, [finding] = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert plans == []
        assert mentions(finding.message, "audit", "topic orders")
        assert len(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0]) == 1

        remote_log.context.safety.put_audit_result(store_audit_result(500, 500, 1, 1_000, deep=False))
        expiries, [finding] = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert expiries == []
        assert mentions(finding.message, "audit of the store")


def test_an_audit_result_that_comes_after_the_plan_is_obeyed(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "retention.bytes": 1, "local.retention.bytes": 0}}
    files = a_copied_remote_log(tmp_path, topics=topics)
    with files.open() as remote_log:
        trims, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        expiries, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.context.safety.put_audit_result(store_audit_result(500, 500, 1, 1_000, deep=False))

        assert "nothing refers to 500" in remote_log.deletions.enforce_local_retention(trims).failures[0].message
        done, [left] = remote_log.deletions.mark_expired(expiries, "expire")
        assert done == ()
        assert "nothing refers to 500" in left.message
        assert files.local_starts() == [0, 10, 20, 30]
