"""What an audit leaves behind for whoever deletes: a verdict for each topic that it looked at.

What was left behind, and offsets that are there twice, are no reason to keep anything: nothing is missing by them, and
every byte that trimming relies on is read back before. A quick audit says nothing of bytes, so that its verdict never
takes the place of a deep one's. An audit of some partitions cannot clear a topic; it can only find it wanting.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.remote_log.audit_report import AuditReport, TopicFindings
from tiered_storage.remote_log.deletion_gate import store_verdict
from tiered_storage.remote_log.metadata.safety import AuditVerdict, Safety
from tiered_storage.remote_log.selection import Selection


def keep_verdicts(
    report: AuditReport, safety: Safety, selection: Selection, unreferenced_max_percent: int, *, deep: bool
) -> None:
    """Write down what the audit of `selection` found of each topic; what was not read is not cleared.

    An audit of everything also has a verdict on the store as a whole: more than `unreferenced_max_percent` of its
    objects may not be unreferenced, known leftovers apart.
    """
    if not selection.is_narrowed:
        share = (report.unreferenced, report.objects, unreferenced_max_percent)
        safety.put_verdict(store_verdict(*share, report.audited_at, deep=False))
    for topic in report.topics:
        if topic.anomalies or selection.partitions is None:
            for verdict in _verdicts(topic, report.audited_at, deep=deep):
                safety.put_verdict(verdict)


def _verdicts(topic: TopicFindings, audited_at: int, *, deep: bool) -> Iterator[AuditVerdict]:
    """Yield one for each depth that was looked at: a deep audit looks at all that a quick one does."""
    for depth in (False, True) if deep else (False,):
        if depth and topic.unread and not topic.anomalies:
            continue
        yield AuditVerdict(topic.cluster_id, topic.topic_id, depth, audited_at, topic.anomalies, topic.first)
