"""Follow one partition of a running cluster into a log directory: what the command line and other programs call.

    with Follower.open(context, partition, directory) as follower:
        follow(follower)                        until it has caught up with its leader
        follower.remote_log().open_log_reader() reads both tiers, the local one from the follower's own disk

`followers` has those of several partitions in one directory.

The remote log may still be copied from the cluster, by others, meanwhile. Once the directory is closed, a broker may
take it over, or copies may continue from it (log.dirs): by leases and plan as for every source.

It deletes local segments (KIP-405, section Manage Remote Log Segments) once local retention is over, if the remote tier
holds all of them or the log start over both tiers is above them; and once total retention is over, also if they were
never copied, if remote deletion is allowed too, since it may have the last copy. Before each deletion it asks what
`retain` asks: the stop, the generation, the topic's rights, the results of audits, the clock, and whether the store has
the objects. So nothing of a topic that is not tiered goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tiered_storage.errors import (
    ConfigurationError,
    CorruptIndexError,
    RemoteMetadataError,
    RemoteStorageError,
    SourceClusterError,
    TieredStorageError,
    UnknownPartitionError,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.remote_log.context import RemoteLogContext, overlaps
from tiered_storage.remote_log.copy.roll_plan import as_the_topic_rolls
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.follower.followed_directory import FollowedDirectory
from tiered_storage.remote_log.follower.index_files import IndexRotation, RemoteIndexFiles
from tiered_storage.remote_log.follower.partition_follower import FollowedTopic, Leader, PartitionFollower
from tiered_storage.remote_log.follower.start import FollowerStart, plan_start
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import register_partitions
from tiered_storage.remote_log.model import Finding, TopicIdPartition, finding_of
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, snapshot_partition
from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind
from tiered_storage.remote_log.retention.permission.object_checks import ensure_present
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import SegmentSource
from tiered_storage.remote_log.tiering_policy import TieringPolicy, decide, refuse_log

MAINTAINED_EVERY_MS = 30_000
"""How often a follower that stays looks at the remote tier: as often as Kafka's remote log manager."""


@dataclass(frozen=True, slots=True)
class FollowReport:
    """What a follower has: the log start over both tiers, the first local offset, and the end (exclusive).

    `starts` are those of this run: none if the directory's log was continued. `indexed` segments are in the remote log
    index files, `deleted` local segments went. `findings` did not keep it from following.
    """

    partition: str
    log_start_offset: int
    local_start_offset: int
    log_end_offset: int
    starts: tuple[FollowerStart, ...]
    fetched_bytes: int
    truncations: int
    indexed: int
    deleted: int
    findings: tuple[Finding, ...]


class Follower:
    """A follower of one partition. For one thread; close it, or use it in a `with`."""

    def __init__(
        self,
        context: RemoteLogContext,
        partition: TopicIdPartition,
        directory: FollowedDirectory,
        leader: Leader,
        *,
        deletes: bool = True,
    ) -> None:
        """Use `open`, which raises the same. Whoever opened `directory` and `leader` closes them.

        Unless it `deletes`, local segments stay, whatever retention and rights say.
        """
        self._context = context
        self._partition = partition
        self._directory = directory
        self._leader = leader
        register_partitions(context.segments, [partition])
        log = self._leaders_log()
        refuse_log(log)
        self._config = _log_config(log, decide(log, context.topics, context.settings))
        state = context.segments.partition_state(partition)
        rules = log.unsegmented.rules if log.unsegmented is not None else None
        topic = FollowedTopic(
            partition,
            partition.topic_id if rules is None or rules.has_topic_id else None,
            context.settings.copy_window_bytes,
        )
        own = directory.log(partition, self._config, state.log_start_offset or 0)
        write_checkpoints = partial(directory.write_checkpoints, partition)
        self._followed = PartitionFollower(topic, own, leader, self._plan, write_checkpoints)
        settings = context.settings
        rotation = IndexRotation(
            settings.remote_log_index_rotation_bytes, settings.remote_log_index_rotation_interval_ms
        )
        self.index = RemoteIndexFiles(own.directory, rotation)
        self._log_start_offset = own.log_start_offset
        self._deletes = deletes
        self._deleted = 0
        self._findings: dict[str, Finding] = {}

    @classmethod
    def open(
        cls,
        context: RemoteLogContext,
        partition: TopicIdPartition,
        root: Path,
        *,
        node_id: int = 1,
        leader: Leader | None = None,
    ) -> Self:
        """Open the follower of `partition` in the log directory `root`, which is made if it is new.

        `leader` answers for the cluster; by default the cluster of the settings. `node_id` goes into a new directory.

        Raises ConfigurationError if the settings name no cluster, for a directory of another cluster, and for one
        inside of another place of ours; UnknownPartitionError; UnsupportedTopicError for a compacted topic and one that
        Kafka tiers itself; SourceClusterError; and as FollowedDirectory.open and its `log`.
        """
        ensure_may_follow_into(root, context)
        directory = FollowedDirectory.open(root, partition.cluster_id, context.clock, node_id)
        try:
            asked = leader or ClusterClient.by_properties(context.source.access, partition.cluster_id)
            return cls(context, partition, directory, asked)
        except BaseException:
            directory.abandon()
            raise

    @property
    def followed(self) -> PartitionFollower:
        """The partition's log, and what was done with it."""
        return self._followed

    @property
    def has_caught_up(self) -> bool:
        """Whether the log has all that the leader showed at the last step."""
        return self._followed.has_caught_up

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a person should know, and did not keep it from following, as of the last look."""
        return tuple(self._findings.values())

    def look_by(self, source: SegmentSource) -> None:
        """Look at the leader with `source` from now on. Whoever opened it closes it."""
        self._context = replace(self._context, source=source)

    def step(self) -> int:
        """Fetch once; return how many bytes came. Raises as PartitionFollower.step."""
        return self._followed.step()

    def look(self) -> PartitionSnapshot | None:
        """Learn what is remote now: the log rolls where remote segments end.

        An outage of metadata or cluster is a finding, and None: following needs none of this.
        """
        try:
            snapshot = self._snapshot()
        except (RemoteMetadataError, RemoteStorageError, SourceClusterError) as error:
            if not error.retriable:
                raise
            self._find("look", error)
            return None
        self._findings.pop("look", None)
        self._log_start_offset = snapshot.log_start_offset
        return snapshot

    def maintain(self, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Look at the remote tier: bring the index files up to date, delete what local retention allows, checkpoint.

        An outage of store, metadata or cluster is a finding. Once `goes_on` returns False, the index of no further
        segment is fetched; return whether none is left for that reason. Raises OSError.
        """
        is_whole = True
        if (snapshot := self.look()) is not None:
            is_whole = self._sync_index(snapshot, goes_on)
            if self._deletes:
                self._delete(snapshot)
        self.write_checkpoints()
        return is_whole

    def write_checkpoints(self) -> None:
        """Write the log to disk, and how far it is then. Raises OSError."""
        self._directory.write_checkpoints(self._partition)

    def report(self) -> FollowReport:
        """Return what the follower has, and what it did."""
        log, done = self._followed.log, self._followed.done
        return FollowReport(
            str(self._partition),
            min(self._log_start_offset, log.log_start_offset),
            log.segments[0].base_offset,
            log.log_end_offset,
            tuple(done.starts),
            done.fetched_bytes,
            done.truncations,
            len(self.index.segments),
            self._deleted,
            self.findings,
        )

    def remote_log(self) -> RemoteLogManager:
        """Return the remote log with the follower's own directory as its local log: to read, or to copy as a leader.

        It has what was followed until now. Do not close it; use it before this is closed.
        """
        self.write_checkpoints()
        root = self._directory.root
        return RemoteLogManager(replace(self._context, source=LogDirectorySource((root,), held=root)))

    def close(self) -> None:
        """Write everything to disk and release the directory."""
        self._close_leader()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_leader()
        self._directory.__exit__(kind, error, traceback)

    def _close_leader(self) -> None:
        if isinstance(self._leader, ClusterClient):
            self._leader.close()

    def _leaders_log(self) -> PartitionLog:
        found = self._context.source.partition(self._partition)
        if found is None:
            raise UnknownPartitionError(
                f"{self._partition}: its cluster has no such partition any more: nothing can be followed; "
                "'tiered-storage restore' brings a lost topic back"
            )
        return found

    def _snapshot(self) -> PartitionSnapshot:
        snapshot = snapshot_partition(self._partition, self._context.source, self._context.segments)
        self._followed.learn_remote(snapshot.coverage, snapshot.global_log_start)
        return snapshot

    def _plan(self) -> FollowerStart:
        snapshot = self._snapshot()
        if snapshot.local is None:
            # Deleted since the follower was opened.
            self._leaders_log()
        leader = snapshot.local or self._leaders_log()
        from_last_tiered = self._context.settings.follower_fetch_last_tiered_offset_enable
        return plan_start(snapshot, leader, self._context.storage, from_last_tiered=from_last_tiered)

    def _sync_index(self, snapshot: PartitionSnapshot, goes_on: Callable[[], bool]) -> bool:
        ranges, log_start = snapshot.coverage.ranges, snapshot.log_start_offset
        try:
            changes = self.index.sync(ranges, self._context.storage, log_start, goes_on)
        except (RemoteStorageError, CorruptIndexError) as error:
            self._find("index", error)
            return True
        self._findings.pop("index", None)
        return changes.left == 0

    def _delete(self, snapshot: PartitionSnapshot) -> None:
        """Delete what is due by the rights and limits of now; what keeps it is a finding."""
        context = self._context
        self._findings.pop("delete", None)
        try:
            if snapshot.local is None or context.segments.partition_state(self._partition).delete_state is not None:
                # Its readers see nothing of it: what the remote tier has does not count, and may still be brought back.
                return
            self._deleted += _delete_local_segments(
                self._followed.log,
                self._config,
                decide(snapshot.local, context.topics, context.settings),
                snapshot.coverage,
                snapshot.global_log_start,
                self._ensure_may_delete,
            )
        except TieredStorageError as error:
            self._find("delete", error)

    def _ensure_may_delete(self, held_by: Sequence[CoveredRange]) -> None:
        """Raise what keeps the local records that `held_by` holds: what `retain` asks, and objects that are missing."""
        deletions = RemoteLogDeletions(self._context)
        deletions.permissions.ensure(self._partition, DeletionKind.LOCAL)
        for covered in held_by:
            ensure_present(covered.segment, self._context.storage)
        # Last: it renews the generation, which is in vain if anything else refuses.
        deletions.ensure_follower_may_delete(self._partition)

    def _find(self, what: str, error: TieredStorageError) -> None:
        self._findings[what] = finding_of(self._partition, error)


def follow(
    follower: Follower,
    *,
    stays: bool = False,
    is_wanted: Callable[[], bool] = lambda: True,
    clock: Callable[[], int] | None = None,
    on_error: Callable[[TieredStorageError], None] = lambda _: None,
) -> FollowReport:
    """Follow until the log has all that its leader has, or, if the follower `stays`, until `is_wanted` returns False.

    One that stays survives retriable errors: `on_error` gets them. `clock` (ms) decides when it looks at the remote
    tier again. Raises as Follower.step and Follower.maintain.
    """
    follower.look()
    looked_at = 0 if clock is None else clock()
    while is_wanted():
        try:
            follower.step()
        except TieredStorageError as error:
            if not (stays and error.retriable):
                raise
            on_error(error)
        if follower.has_caught_up and not stays:
            break
        if clock is not None and clock() - looked_at >= MAINTAINED_EVERY_MS:
            follower.maintain(is_wanted)
            looked_at = clock()
    follower.maintain(is_wanted)
    return follower.report()


def ensure_may_follow_into(root: Path, context: RemoteLogContext) -> None:
    """Raise ConfigurationError if `root` is inside of another place of ours, or the settings name no cluster."""
    if found := overlaps(context.settings, root, str(root)):
        raise ConfigurationError("; ".join(found))
    if context.source.shows_segments:
        raise ConfigurationError(
            "a follower fetches from running brokers: set bootstrap.servers, and leave log.dirs out"
        )


def _log_config(leader: PartitionLog, policy: TieringPolicy) -> LogConfig:
    """Return how the follower's log rolls: as copies of the topic roll, which is as its brokers do."""
    if leader.unsegmented is None:
        return LogConfig()
    rules = as_the_topic_rolls(leader.unsegmented, policy.settings).rules
    return LogConfig(
        segment_bytes=rules.segment_bytes,
        segment_ms=rules.segment_ms,
        segment_index_bytes=rules.segment_index_bytes,
        index_interval_bytes=rules.index_interval_bytes,
    )


def _delete_local_segments(
    log: LocalLog,
    config: LogConfig,
    policy: TieringPolicy,
    coverage: Coverage,
    log_start_offset: int,
    ensure_may_delete: Callable[[Sequence[CoveredRange]], object],
) -> int:
    """Delete what local or total retention lets go from `log`, whose topic has `policy`; return how many segments.

    `coverage` is what the remote tier holds, `log_start_offset` the log start over both tiers, and `config` what the
    log is rolled by. `ensure_may_delete` is called once something is due, with the remote ranges that hold it; what it
    raises keeps all of it.
    """
    if not policy.trims:
        return 0
    limits = policy.settings
    local = replace(config, retention_ms=limits.local_retention_ms, retention_bytes=limits.local_retention_bytes)
    total = replace(config, retention_ms=limits.retention_ms, retention_bytes=limits.retention_bytes)
    reached = _remote_end(log, coverage, log_start_offset)
    held_end, end = log.end_of_old_segments(local, reached), 0
    if policy.topic.remote_deletion_allowed:
        end = log.end_of_old_segments(total)
    first = log.segments[0].base_offset
    if max(held_end, end) > first:
        ensure_may_delete([each for run in coverage.runs(first, max(held_end, end) - 1) for each in run])
    # Not more than was asked for, although the clock goes on.
    return len(log.delete_old_segments(local, held_end)) + len(log.delete_old_segments(total, end))


def _remote_end(log: LocalLog, coverage: Coverage, log_start_offset: int) -> int:
    """Return up to which offset (exclusive) the remote tier holds the local log, from its first segment on."""
    first = max(log.segments[0].base_offset, log_start_offset)
    missing = coverage.missing(first, log.log_end_offset - 1)
    return missing[0][0] if missing else max(first, log.log_end_offset)
