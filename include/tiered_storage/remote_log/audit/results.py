"""The verdicts of an audit for later deletions: one for each audited topic.

Orphans and duplicate offsets are no reason to keep anything: nothing is missing because of them, and trimming reads
back every byte that it relies on. A quick audit does not check bytes, so its verdict never replaces a deep one's. An
audit of some partitions can find fault with a topic, but cannot clear it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.remote_log.audit.report import AuditReport, TopicFindings
from tiered_storage.remote_log.metadata.safety import AuditVerdict, Safety
from tiered_storage.remote_log.retention.gate.deletion_gate import store_verdict
from tiered_storage.remote_log.selection import Selection


def keep_verdicts(
    report: AuditReport, safety: Safety, selection: Selection, unreferenced_max_percent: int, *, deep: bool
) -> None:
    """Record the verdict of the audit of `selection` on each topic; what was not read is not cleared.

    There is one on the store as a whole, too: at most `unreferenced_max_percent` of the objects may be unreferenced,
    known orphans of ours excepted. An audit of some topics can find fault with the store, but cannot clear it.
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
    """Yield a verdict for each audited depth: a deep audit includes a quick one."""
    for depth in (False, True) if deep else (False,):
        if depth and topic.unread and not topic.anomalies:
            continue
        yield AuditVerdict(topic.cluster_id, topic.topic_id, depth, audited_at, topic.anomalies, topic.first)
