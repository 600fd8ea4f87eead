"""What an audit leaves behind for whoever deletes: a verdict for each topic that it looked at.

What was left behind, and offsets that are there twice, are no reason to keep anything: nothing is missing by them, and
every byte that trimming relies on is read back before. A quick audit says nothing of bytes, so that its verdict never
takes the place of a deep one's. An audit of some partitions cannot clear a topic; it can only find it wanting.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.remote_log.audit.report import AuditReport, TopicFindings
from tiered_storage.remote_log.metadata.safety import AuditVerdict, Safety
from tiered_storage.remote_log.retention.deletion_gate import store_verdict
from tiered_storage.remote_log.selection import Selection


def keep_verdicts(
    report: AuditReport, safety: Safety, selection: Selection, unreferenced_max_percent: int, *, deep: bool
) -> None:
    """Write down what the audit of `selection` found of each topic; what was not read is not cleared.

    There is one on the store as a whole, too: of the objects that were read no more than `unreferenced_max_percent` may
    be unreferenced, known leftovers apart. An audit of some topics can only find the store wanting.
    """
    of_store = store_verdict(
        report.unreferenced, report.objects, unreferenced_max_percent, report.audited_at, deep=False
    )
    if of_store.anomalies or not selection.is_narrowed:
        safety.put_verdict(of_store)
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
