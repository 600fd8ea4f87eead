"""Runs that delete under a clock of a test, which refuses them or lets them pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from support.remote_logs import ORDERS_0, RemoteLogFiles, topic_id
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY
SKEW = 5 * MINUTE
GRACE = HOUR


def expire(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    remote_log.deletions.mark_expired(plans, "expire")
    remote_log.deletions.delete_marked("expire")


def delete_records(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
    assert plan is not None
    remote_log.deletions.mark_expired([plan], "delete-records")


def delete_topic(remote_log: RemoteLogManager) -> None:
    shutil.rmtree(remote_log.context.settings.log_dirs[0] / "orders-0", ignore_errors=True)
    plan = remote_log.deletions.plan_topic_deletion("orders", topic_id("orders"))
    remote_log.deletions.mark_topic_deleted(plan, "delete-topic")


def trim(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, remote_log.context.clock())
    remote_log.deletions.enforce_local_retention(plans)


def repair(remote_log: RemoteLogManager) -> None:
    plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
    remote_log.repairs.carry_out(plan, "repair", lambda _: pytest.fail())


def check(remote_log: RemoteLogManager) -> None:
    remote_log.deletions.clocks.ensure_agrees()


def run(files: RemoteLogFiles, *operations: Callable[[RemoteLogManager], None]) -> None:
    with files.open() as remote_log:
        for operation in operations:
            operation(remote_log)


def refused(files: RemoteLogFiles, operation: Callable[[RemoteLogManager], None], match: str = "trust-clock") -> None:
    with files.open() as remote_log, pytest.raises(DeletionRefusedError, match=match):
        operation(remote_log)
