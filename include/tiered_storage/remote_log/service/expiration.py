"""The expiration's tasks: plan, mark and delete what is past total retention of a few partitions.

They delete as runs of a schedule do: only if scheduled.deletion.enable is set, and as far as each topic's rights, the
stop of deletions, audits and clocks allow. A task deletes for DELETION_SECONDS at most, and only in one partition that
needs more than a batch: the others are due again at once. So a large deletion delays no copy for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.model import (
    Finding,
    LeaseHeldFinding,
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.service.chosen_partitions import NamedSelection, only
from tiered_storage.remote_log.service.pools import Ended, TroubleLog, by_partition
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, Role, TaskKind
from tiered_storage.remote_log.source.partition_log import NamedPartition

_log = logging.getLogger(__name__)

TOPICS_SECONDS: Final = 300.0
"""How often the topics as a whole are compared with what the brokers show."""
DELETION_SECONDS: Final = 30.0
"""For how long a task deletes: about as long as copies wait for their turn anyway."""
_DELETED_AS_A_WHOLE = frozenset({PartitionDeleteState.MARKED, PartitionDeleteState.STARTED})
_TO_DELETE = frozenset({SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED})
_NOTHING = DeletionReport((), (), ())


class _Work(NamedTuple):
    """A partition in which up to so many segments are to be deleted."""

    partition: TopicIdPartition
    segments: int


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
        self._unknown_cluster: str | None = None
        self._compared: frozenset[str] = frozenset()

    def __call__(self, partitions: Sequence[TopicIdPartition], ended: Ended) -> None:
        """Expire what is due of `partitions`; see Work."""
        chosen, selection = only(self._remote_log, partitions)
        plans, left = chosen.deletions.plan_expiry(selection, self._remote_log.context.clock())
        why_not = self._why_nothing_is_deleted(plans)
        wanted = [each for each in partitions if self._schedule.is_wanted(each, TaskKind.EXPIRATION)]
        work: dict[TopicIdPartition, list[_Work]] = {}
        if why_not is None:
            left += self._mark([each for each in plans if str(each.topic_id_partition) in set(map(str, wanted))])
            work = self._with_work(wanted, selection)
        planned = {each.topic_id_partition for each in plans}

        def end(some: Sequence[TopicIdPartition], report: DeletionReport = _NOTHING) -> None:
            found = (*left, *report.failures, *report.left)
            failures = by_partition(some, (each for each in found if not isinstance(each, LeaseHeldFinding)))
            reasons = {each: [why_not if each in planned else None, report.stopped] for each in some}
            shown = {each: [*failures[each], *filter(None, reasons[each])] for each in some}
            self._troubles.report(TaskKind.EXPIRATION, shown)
            cut = set(map(str, report.cut))
            for each in some:
                more = Outcome.MORE if str(each) in cut else Outcome.DONE
                ended(each, Outcome.FAILED if failures[each] else more)

        end([each for each in partitions if each not in work])
        large = [each for each, found in work.items() if sum(one.segments for one in found) > self._batch]
        for some in ([each for each in work if each not in large], large[:1]):
            if some:
                end(some, self._delete([one.partition for each in some for one in work[each]], selection))
        for each in large[1:]:
            ended(each, Outcome.MORE)

    def _why_nothing_is_deleted(self, plans: Sequence[ExpiryPlan]) -> str | None:
        if not self._remote_log.context.settings.scheduled_deletion_enable:
            due = sum(each.count for each in plans)
            return f"{due} segments are past retention, and stay until scheduled.deletion.enable is true"
        if (stopped := self._remote_log.deletions.why_nothing_is_deleted()) is not None:
            return stopped
        self._compare_topics()
        return self._unknown_cluster

    @property
    def _batch(self) -> int:
        return self._remote_log.context.settings.deletion_batch_segments

    def _mark(self, plans: Sequence[ExpiryPlan]) -> Sequence[Finding]:
        """Mark what `plans` list; return what was left, and why."""
        if not plans:
            return ()
        done, not_marked = self._remote_log.deletions.mark_expired(plans, self._owner)
        _log.info("marked what is past retention in %d partitions", len(done))
        return not_marked

    def _delete(self, marked: Collection[TopicIdPartition], selection: Selection) -> DeletionReport:
        """Delete what is marked in `marked`, until the time is over or the service stops."""
        until = self._now() + DELETION_SECONDS

        def goes_on() -> bool:
            return self._now() < until and not self._schedule.is_stopped

        report = self._remote_log.deletions.delete_marked(self._owner, selection, marked, goes_on=goes_on)
        if report.deleted:
            size = sum(each.size for each in report.deleted)
            _log.info("deleted %d segments, %d bytes", len(report.deleted), size)
        return report

    def _with_work(
        self, wanted: Sequence[TopicIdPartition], selection: Selection
    ) -> dict[TopicIdPartition, list[_Work]]:
        """Return which of `wanted` have marked segments or unfinished copies, also of an earlier incarnation.

        A deletion run decides what of that is due. A copy under way elsewhere holds the partition, so its segments are
        left alone.
        """
        segments = self._remote_log.context.segments
        states = segments.partition_states()
        chosen = {each: state for each, state in states.items() if selection.matches(each.topic, each.partition)}
        held = {each.topic_id_partition for each in self._remote_log.context.leases.held()} if chosen else set()
        found: dict[str, list[_Work]] = {}
        for each, state in sorted(chosen.items()):
            counts = segments.count_remote_log_segments(each)
            is_whole = state.delete_state in _DELETED_AS_A_WHOLE
            if each not in held and (is_whole or _TO_DELETE & counts.keys()):
                count = sum(number for one, number in counts.items() if is_whole or one in _TO_DELETE)
                found.setdefault(str(each), []).append(_Work(each, count))
        return {each: found[str(each)] for each in wanted if str(each) in found}

    def _compare_topics(self) -> None:
        """Now and then, look which cluster it is, mark topics that were created again, and note lowered limits.

        `expire` does the same in each run, over the whole source.
        """
        with self._lock:
            if self._now() < self._topics_at:
                return
            self._unknown_cluster = self._why_unknown_cluster()
            self._topics_at = self._now() + TOPICS_SECONDS
        if self._unknown_cluster is not None:
            return
        led = self._schedule.partitions(Role.LEADER)
        everything = NamedSelection(chosen=frozenset((each.topic, each.partition) for each in led))
        found = frozenset(map(str, self._remote_log.deletions.compare_topics(self._owner, everything)))
        for finding in sorted(found - self._compared):
            _log.warning("%s", finding)
        self._compared = found

    def _why_unknown_cluster(self) -> str | None:
        """Return why nothing may expire: the source is a cluster that no copy is of. Tasks see their partitions alone.

        Raises what the source raises.
        """
        context = self._remote_log.context
        if context.source.shows_segments:
            return None
        known, is_named = context.segments.list_partitions(), context.settings.cluster_id is not None
        identities = LostIdentities(known, context.segments, is_cluster_named=is_named)
        for named in context.source.names():
            if isinstance(named, NamedPartition) and (log := context.source.partition(named.topic_id_partition)):
                return identities.why_unknown_cluster(log)
        return None
