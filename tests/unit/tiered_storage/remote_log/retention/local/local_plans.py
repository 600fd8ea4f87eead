"""Local retention for tests: plans under given limits, and what they take."""

from __future__ import annotations

from typing import Any

from support.remote_logs import BATCH_BYTES, ENABLED, NOW, SEGMENT_BYTES, local_log
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan, plan_local_retention
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.settings.topics import TopicSettings

TOTAL = 3 * SEGMENT_BYTES + BATCH_BYTES
"""The bytes of a local log of three closed segments and an active one."""


def plan_with(remote_log: RemoteLogManager, now: int = NOW, **limits: Any) -> LocalRetentionPlan:
    """Plan with `limits` (local_retention_ms, local_retention_bytes), where the rest is unlimited."""
    given = {"retention.ms": -1, **{name.replace("_", "."): value for name, value in limits.items()}}
    defaults = TopicSettings.parse("defaults", {})
    settings = TopicSettings.parse("orders", given).over(defaults, "orders")
    return plan_local_retention(local_log(remote_log), remote_log.context.segments, settings, now)


def bases(plan: LocalRetentionPlan) -> list[int]:
    return [segment.base_offset for segment in plan.segments]


def retain(remote_log: RemoteLogManager, now: int = NOW) -> list[str]:
    """Enforce local retention on everything and return what failed."""
    plans, unreadable = remote_log.deletions.plan_local_retention(EVERYTHING, now)
    report = remote_log.deletions.enforce_local_retention(plans)
    return [finding.message for finding in (*unreadable, *report.failures)]


def keeping(size: int) -> dict[str, Any]:
    """Return the settings of a topic that keeps so many bytes locally."""
    return {"orders": {**ENABLED, "local.retention.bytes": size}}
