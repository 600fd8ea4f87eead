"""The deletion of everything remote of one incarnation of a topic, by its topic id.

A person marks it: from then on no copy of its partitions begins. The background (delete_marked) then takes each
partition to STARTED, marks all of its segments, deletes their objects, and writes FINISHED once its folder in the store
holds only the partition manifest. That stays, so that objects that appear later never pass for a live topic. Another
incarnation of the name has another topic id, and is not touched. A topic that the source does not show is not a deleted
topic, so nothing here begins on its own. The exception: a running cluster shows the name with another topic id, so the
topic was deleted and created again. Then the old partitions are marked after remote.log.replaced.topic.grace.ms, if
remote deletion is allowed. If there are many such topics, the cluster may have been rebuilt under its id, and the
remote log may be its backup: then the user decides.

KIP-405, RemotePartitionDeleteState.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

from tiered_storage.errors import ConfigurationError, DeletionRefusedError, OutdatedMetadataError, TieredStorageError
from tiered_storage.kafka_log.files.topic_partition import near_names
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.enabling.absent_topics import REPLACED_SINCE, AbsentTopic, ShownTopics
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, listed_partition, write_partition_state
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
    finding_of,
)
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_known_versions
from tiered_storage.remote_log.source.opening import CLUSTER, local_place
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import configured_partitions
from tiered_storage.remote_log.storage.listable_storage import as_listable


@dataclass(frozen=True, slots=True)
class TopicDeletionPlan:
    """The partitions of one incarnation of a topic whose remote data are deleted, and their size."""

    topic: str
    topic_id: str
    partitions: tuple[PlannedPartitionDeletion, ...]


@dataclass(frozen=True, slots=True)
class PlannedPartitionDeletion:
    """One partition: its remote segments, their bytes, and the state of its deletion (None: not begun)."""

    topic_id_partition: TopicIdPartition
    segments: int
    size: int
    state: PartitionDeleteState | None


def plan_topic_deletion(
    topic: str, topic_id: str | None, context: RemoteLogContext, permissions: DeletionPermissions
) -> TopicDeletionPlan:
    """Return the plan to delete `topic`, by its exact name; `topic_id` selects one of several incarnations.

    Raises ConfigurationError for a name or an id that is not known, if several incarnations have the name, or one is in
    several clusters, and for an incarnation that is tiered and still local; DeletionRefusedError if remote
    deletion is not allowed.
    """
    local = [log.topic_id_partition for log in _local_logs(context)]
    states = context.segments.partition_states()
    known = sorted({*local, *states, *context.segments.list_partitions()})
    incarnations = {(each.cluster_id, each.topic_id): each for each in known if each.topic == topic}
    chosen = _chosen_incarnation(topic, topic_id, incarnations, sorted({each.topic for each in known if each.is_named}))
    is_of_it = (chosen.cluster_id, chosen.topic_id)
    wanted = [replace(each, topic=topic) for each in known if (each.cluster_id, each.topic_id) == is_of_it]
    is_in_sight = any(each in wanted for each in local) or _is_unreadable(topic, context)
    if context.decided_topic(chosen).remote_storage_enable and is_in_sight:
        raise ConfigurationError(
            f"topic {topic} ({chosen.topic_id}) is tiered, and in {local_place(context.settings)}: its next run would "
            f"copy it again; first 'tiered-storage topics disable {topic}', or 'topics disable {topic} "
            "--delete-remote' to delete only its remote data"
        )
    permissions.ensure_allowed(chosen, DeletionKind.REMOTE)
    planned = []
    for partition in wanted:
        segments = list(context.segments.list_remote_log_segments(partition))
        state = states[partition].delete_state if partition in states else None
        planned.append(PlannedPartitionDeletion(partition, len(segments), sum(one.size for one in segments), state))
    return TopicDeletionPlan(topic, chosen.topic_id, tuple(planned))


def mark_topic_deleted(
    plan: TopicDeletionPlan, context: RemoteLogContext, permissions: DeletionPermissions, owner: str
) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
    """Mark the partitions of `plan`; return those that are marked now, and the failures with their reasons.

    A marked partition stays as it is. Raises DeletionRefusedError if all deletions are stopped.
    """
    permissions.ensure_running()
    marked: list[TopicIdPartition] = []
    left: list[Finding] = []
    for planned in plan.partitions:
        partition = planned.topic_id_partition
        try:
            if context.segments.partition_state(partition).delete_state is None:
                ensure_known_versions(context.segments.list_remote_log_segments(partition), context.storage)
                _mark(
                    context.leases.acquire(partition, owner, context.settings.lease_duration_ms), context, permissions
                )
            marked.append(partition)
        except TieredStorageError as error:
            left.append(finding_of(partition, error))
            if isinstance(error, OutdatedMetadataError):
                break
    return tuple(marked), tuple(left)


@dataclass(frozen=True, slots=True)
class ReplacedTopics:
    """The topics whose names a running cluster shows with other topic ids, as far as remote data may be left.

    `why_many` is set if they are more than one, and half or more of all that it shows and that have remote segments.
    """

    topics: tuple[AbsentTopic, ...] = ()
    why_many: str | None = None


def replaced_topics(context: RemoteLogContext) -> ReplacedTopics:
    """Return what the running cluster replaced; nothing of log directories.

    Removes the mark REPLACED_SINCE from topics that the cluster shows again. Raises SourceClusterError.
    """
    if not CLUSTER.is_named(context.settings):
        return ReplacedTopics()
    shown = ShownTopics(shows_all=False)
    for each in context.source.names():
        shown.add(each)
    for topic in context.topics.list():
        if REPLACED_SINCE in topic.properties and shown.shows(topic.cluster_id, topic.topic_id, topic.name):
            context.topics.change(topic.cluster_id, topic.topic_id, partial(_current, topic))
    states = context.segments.partition_states()
    remote = [
        each for each in context.segments.list_partitions() if each not in states or states[each].delete_state is None
    ]
    replaced = shown.absent(remote)
    return ReplacedTopics(tuple(replaced), _why_many(replaced, remote, shown, context) if len(replaced) > 1 else None)


def _why_many(
    replaced: Sequence[AbsentTopic], remote: Sequence[TopicIdPartition], shown: ShownTopics, context: RemoteLogContext
) -> str | None:
    """Return why these are too many to have been deleted one by one; None if they are few."""

    def holds(partition: TopicIdPartition) -> bool:
        return SegmentState.COPY_SEGMENT_FINISHED in context.segments.count_remote_log_segments(partition)

    names = {each.first.topic for each in replaced if any(map(holds, each.partitions))}
    others = {
        each.topic
        for each in remote
        if each.topic not in names and shown.shows(each.cluster_id, each.topic_id, each.topic) and holds(each)
    }
    if len(names) < 2 or len(names) < len(others):
        return None
    return (
        f"{len(names)} of {len(names) + len(others)} topics with remote data have other topic ids at the brokers, such "
        f"as {min(names)}. If the cluster was rebuilt under its id, these data are its backup, so expire marks none of "
        "them. For each topic that was really deleted, run 'tiered-storage delete-topic NAME --topic-id ID' ('topics "
        "list' shows the ids). To keep the data, run 'tiered-storage topics forbid-deletion NAME'"
    )


def mark_replaced(
    replaced: Iterable[AbsentTopic], context: RemoteLogContext, permissions: DeletionPermissions, owner: str
) -> tuple[Finding, ...]:
    """Mark the partitions of replaced topics whose grace time is over; return the failures.

    For those seen for the first time, the grace time begins. Raises DeletionRefusedError if all deletions are stopped.
    """
    left: list[Finding] = []
    for each in replaced:
        old = each.first
        since = _replaced_since(old, context)
        if context.clock() < since + context.settings.remote_log_replaced_topic_grace_ms:
            continue
        try:
            plan = plan_topic_deletion(old.topic, old.topic_id, context, permissions)
            left.extend(mark_topic_deleted(plan, context, permissions, owner)[1])
        except (ConfigurationError, DeletionRefusedError) as error:
            permissions.ensure_running()
            left.append(finding_of(old, error))
    return tuple(left)


def _replaced_since(old: TopicIdPartition, context: RemoteLogContext) -> int:
    """Return since when (ms) the topic is known to be replaced; now, if this is the first time."""
    now, start = context.clock(), context.decided_topic(old)

    def noted(known: Topic | None) -> Topic:
        topic = known or start
        return replace(topic, properties={REPLACED_SINCE: str(now), **topic.properties})

    known = start.properties.get(REPLACED_SINCE)
    return int(known or context.topics.change(old.cluster_id, old.topic_id, noted).properties[REPLACED_SINCE])


def _current(seen: Topic, known: Topic | None) -> Topic:
    """Return the decision, `known` or else as it was `seen`, without the mark that the topic is replaced."""
    topic = known or seen
    return replace(topic, properties={key: value for key, value in topic.properties.items() if key != REPLACED_SINCE})


def start_partition_deletion(lease: Lease, context: RemoteLogContext) -> None:
    """Take a marked partition to STARTED, and mark every segment that was visible: before its segments are deleted.

    Raises OutdatedMetadataError, LeaseLostError.
    """
    partition = lease.topic_id_partition
    metadata, now = context.segments, context.clock()
    listed_partition(partition, context.storage)
    _take_step(lease, PartitionDeleteState.STARTED, context, now)
    visible = finished(metadata.list_remote_log_segments(partition))
    steps = [
        (RemoteLogSegmentMetadataUpdate(segment.segment_id, SegmentState.DELETE_SEGMENT_STARTED, now), lease)
        for segment in visible
    ]
    for outcome in metadata.update_remote_log_segments(steps):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            raise outcome


def finish_partition_deletion(lease: Lease, context: RemoteLogContext) -> str | None:
    """Take a partition to FINISHED if nothing of it is left; return what the user must look at.

    Objects that a zombie wrote after a deletion are deleted once older than the grace time. Raises
    OutdatedMetadataError.
    """
    partition = lease.topic_id_partition
    storage, now = context.storage, context.clock()
    if any(True for _ in context.segments.list_remote_log_segments(partition)):
        return None
    listed = listed_partition(partition, storage)
    old_before = now - context.settings.remote_log_orphan_grace_ms
    old = [one for one in listed if one.segment is not None and one.last_modified <= old_before]
    if old and (listable := as_listable(storage)) is not None:
        for error in listable.delete_objects([one.name for one in old]).values():
            return str(error)
    foreign = [one.name for one in listed if one.segment is None and one.document is None]
    if foreign:
        return (
            f"the partition's folder still has {len(foreign)} objects that are not ours, such as "
            f"{foreign[0]}: move them elsewhere, and the next run completes the deletion"
        )
    if len(old) == sum(one.document is None for one in listed):
        _take_step(lease, PartitionDeleteState.FINISHED, context, context.clock())
    return None


def _mark(lease: Lease, context: RemoteLogContext, permissions: DeletionPermissions) -> None:
    partition = lease.topic_id_partition
    try:
        permissions.ensure(partition, DeletionKind.REMOTE)
        listed_partition(partition, context.storage)
        _take_step(lease, PartitionDeleteState.MARKED, context, context.clock())
    finally:
        context.leases.release(lease)


def _take_step(lease: Lease, step: PartitionDeleteState, context: RemoteLogContext, now: int) -> None:
    """Change the state in the metadata, after the store; skip a step that was taken already."""
    partition, metadata = lease.topic_id_partition, context.segments
    state = metadata.partition_state(partition)
    if state.delete_state is not None and state.delete_state > step:
        return
    stored = StoredState.of(replace(state, delete_state=step), metadata.list_remote_log_segments(partition))
    write_partition_state(context.storage, context.leases, lease, stored, now)
    metadata.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(partition, step, now), lease)


def _local_logs(context: RemoteLogContext) -> Iterable[PartitionLog]:
    for log in configured_partitions(context.source):
        if isinstance(log, PartitionLog) and not log.is_internal:
            yield log


def _is_unreadable(topic: str, context: RemoteLogContext) -> bool:
    """Return whether the source has a partition of that name whose incarnation is unknown."""
    logs = configured_partitions(context.source)
    return any(isinstance(log, UnreadablePartition) and log.topic == topic for log in logs)


def _chosen_incarnation(
    topic: str, topic_id: str | None, incarnations: dict[tuple[str, str], TopicIdPartition], names: Sequence[str]
) -> TopicIdPartition:
    if not incarnations:
        near = near_names(topic, names) or get_close_matches(topic, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "'tiered-storage topics list' shows what there is"
        raise ConfigurationError(f"no topic is called {topic!r}: {hint} Nothing was deleted")
    ids = sorted({incarnation.topic_id for incarnation in incarnations.values()})
    if topic_id is None and len(ids) > 1:
        raise ConfigurationError(
            f"topic {topic} had several incarnations, with the ids {', '.join(ids)}: give one of them by --topic-id"
        )
    wanted = ids[0] if topic_id is None else topic_id
    if wanted not in ids:
        near = get_close_matches(wanted, ids, n=1, cutoff=0)
        raise ConfigurationError(f"topic {topic} never had the id {wanted!r}; the nearest one is {near[0]!r}")
    chosen = [incarnation for incarnation in incarnations.values() if incarnation.topic_id == wanted]
    if len(chosen) > 1:
        clusters = ", ".join(sorted(incarnation.cluster_id for incarnation in chosen))
        raise ConfigurationError(
            f"topic {topic} ({wanted}) is in the metadata of several clusters, {clusters}: nothing was deleted, since "
            "it is unclear which one is meant; keep the metadata of each cluster in a store of its own"
        )
    return chosen[0]
