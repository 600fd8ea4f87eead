"""Expiries for tests: plans under given limits, and segments that were copied twice."""

from __future__ import annotations

from typing import Any
from unittest import mock

from support.remote_logs import BATCH_BYTES, ENABLED, NOW, ORDERS_0, SEGMENT_BYTES, copy, local_log
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, plan_expiry
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.settings.topics import TopicSettings

TOTAL = 3 * SEGMENT_BYTES + BATCH_BYTES
"""The bytes of three remote segments and of the local batch that is not remote yet."""


def plan_with(
    remote_log: RemoteLogManager, now: int = NOW, *, with_local: bool = True, most: int | None = None, **limits: int
) -> ExpiryPlan | None:
    """Plan with `limits` (retention_ms, retention_bytes), where the other is unlimited."""
    given = {name.replace("_", "."): value for name, value in {"retention_ms": -1, **limits}.items()}
    settings = TopicSettings.parse("orders", given).over(TopicSettings.parse("defaults", {}), "orders")
    local = local_log(remote_log) if with_local else None
    return plan_expiry(ORDERS_0, remote_log.context.segments, settings, now, local, max_segments=most)


def going(plan: ExpiryPlan | None) -> list[int]:
    return [] if plan is None else [segment.start_offset for segment in plan.segments]


def expire(remote_log: RemoteLogManager, now: int = NOW, owner: str = "expire") -> DeletionReport:
    """Plan, mark and delete everything."""
    remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, now)[0], owner)
    return remote_log.deletions.delete_marked(owner)


def keeping(size: int) -> dict[str, Any]:
    """Return the settings of a topic that keeps so many bytes in both tiers."""
    return {"orders": {**ENABLED, "retention.bytes": size}}


def copy_twice(remote_log: RemoteLogManager, offset: int) -> RemoteLogSegmentMetadata:
    """Let two runs copy the segment at `offset`, as one that lost sight of the other would; return the later copy."""
    with mock.patch.object(Coverage, "lacks", lambda _, start, *__: start == offset):
        [committed] = copy(remote_log, "another run").committed
    return committed
