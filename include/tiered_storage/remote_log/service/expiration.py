"""The expiration's tasks: plan, mark and delete what is past total retention of a few partitions.

They delete as runs of a schedule do: only if scheduled.deletion.enable is set, and as far as each topic's rights, the
stop of deletions, audits and clocks allow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    Finding,
    LeaseHeldFinding,
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.service.chosen_partitions import NamedSelection, only
from tiered_storage.remote_log.service.pools import Ended, TroubleLog, by_partition
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, Role, TaskKind

_log = logging.getLogger(__name__)

TOPICS_SECONDS: Final = 300.0
"""How often the topics as a whole are compared with what the brokers show."""
_DELETED_AS_A_WHOLE = frozenset({PartitionDeleteState.MARKED, PartitionDeleteState.STARTED})
_TO_DELETE = frozenset({SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED})


class ExpirationTasks:
    """Expires for a service, as the lease holder `owner`; `now` is in seconds."""

    def __init__(
        self,
        remote_log: RemoteLogManager,
        schedule: PartitionSchedule,
        owner: str,
        troubles: TroubleLog,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Delete nothing yet."""
        self._remote_log = remote_log
        self._schedule = schedule
        self._owner = owner
        self._troubles = troubles
        self._now = now
        self._lock = threading.Lock()
        self._topics_at = now()

    def __call__(self, partitions: Sequence[TopicIdPartition], ended: Ended) -> None:
        """Expire what is due of `partitions`; see Work."""
        chosen, selection = only(self._remote_log, partitions)
        plans, left = chosen.deletions.plan_expiry(selection, self._remote_log.context.clock())
        why_not = self._why_nothing_is_deleted(plans)
        if why_not is None:
            self._compare_topics()
            wanted = [each for each in partitions if self._schedule.is_wanted(each, TaskKind.EXPIRATION)]
            left += self._delete([each for each in plans if self._is_of(each, wanted)], wanted, selection)
        failures = by_partition(partitions, (each for each in left if not isinstance(each, LeaseHeldFinding)))
        planned = {each.topic_id_partition for each in plans}
        shown = {each: [why_not] if why_not is not None and each in planned else [] for each in partitions}
        self._troubles.report(TaskKind.EXPIRATION, {each: [*failures[each], *shown[each]] for each in partitions})
        for each in partitions:
            ended(each, Outcome.FAILED if failures[each] else Outcome.DONE)

    def _why_nothing_is_deleted(self, plans: Sequence[ExpiryPlan]) -> str | None:
        if not self._remote_log.context.settings.scheduled_deletion_enable:
            due = sum(each.count for each in plans)
            return f"{due} segments are past retention, and stay until scheduled.deletion.enable is true"
        return self._remote_log.deletions.why_nothing_is_deleted()

    @staticmethod
    def _is_of(plan: ExpiryPlan, wanted: Iterable[TopicIdPartition]) -> bool:
        """Return whether `plan` is of one of `wanted`, or of an earlier incarnation of one."""
        return str(plan.topic_id_partition) in {str(each) for each in wanted}

    def _delete(
        self, plans: Sequence[ExpiryPlan], wanted: Sequence[TopicIdPartition], selection: Selection
    ) -> list[Finding]:
        """Mark what `plans` list, and delete what is marked of `wanted`; return what was left, and why."""
        deletions, left = self._remote_log.deletions, list[Finding]()
        if plans:
            done, not_marked = deletions.mark_expired(plans, self._owner)
            left += not_marked
            _log.info("marked what is past retention in %d partitions", len(done))
        names = {str(each) for each in wanted}
        marked = [each for each in self._with_work(selection) if str(each) in names]
        if marked:
            report = deletions.delete_marked(self._owner, selection, marked)
            left += (*report.failures, *report.left)
            if report.deleted:
                size = sum(each.size for each in report.deleted)
                _log.info("deleted %d segments, %d bytes", len(report.deleted), size)
            if report.stopped is not None:
                _log.warning("%s", report.stopped)
        return left

    def _with_work(self, selection: Selection) -> list[TopicIdPartition]:
        """Return the partitions with marked segments or unfinished copies; a deletion run decides what is due.

        A copy under way elsewhere holds the partition, so its segments are left alone.
        """
        segments = self._remote_log.context.segments
        found = segments.partition_states()
        chosen = {each: state for each, state in found.items() if selection.matches(each.topic, each.partition)}
        held = {each.topic_id_partition for each in self._remote_log.context.leases.held()} if chosen else set()
        return [
            each
            for each, state in sorted(chosen.items())
            if each not in held
            and (
                state.delete_state in _DELETED_AS_A_WHOLE
                or _TO_DELETE & segments.count_remote_log_segments(each).keys()
            )
        ]

    def _compare_topics(self) -> None:
        """Now and then, mark topics that were created again, and note limits that brokers lowered, as `expire` does."""
        with self._lock:
            if self._now() < self._topics_at:
                return
            self._topics_at = self._now() + TOPICS_SECONDS
        led = self._schedule.partitions(Role.LEADER)
        everything = NamedSelection(chosen=frozenset((each.topic, each.partition) for each in led))
        for finding in self._remote_log.deletions.compare_topics(self._owner, everything):
            _log.warning("%s", finding)
