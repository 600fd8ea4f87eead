"""Audits for tests: what a report names, and segments that it is to find."""

from __future__ import annotations

import time

from support.clocks import ManualClock
from support.metadata_stores import a_step
from support.remote_logs import held_by
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, AuditReport
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState

DAYS = 10**10
"""Milliseconds by which the clock is ahead of the objects' file times, to make them look old."""


def later() -> ManualClock:
    return ManualClock(time.time_ns() // 1_000_000 + DAYS)


def kinds(report: AuditReport) -> list[AnomalyKind]:
    return [anomaly.kind for anomaly in report.anomalies]


def the_anomaly(report: AuditReport) -> Anomaly:
    [anomaly] = report.anomalies
    return anomaly


def step(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata, state: SegmentState) -> None:
    lease = held_by(remote_log, "test")
    remote_log.context.segments.update_remote_log_segment_metadata(a_step(segment, state), lease)
    remote_log.context.leases.release(lease)
