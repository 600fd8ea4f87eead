"""The lineage of a partition: which leader epoch began at which offset, as far back as known.

A lineage has each leader epoch with its first offset (Kafka's leader-epoch-checkpoint). A leader truncates what earlier
ones wrote from its own first offset on (KIP-101), so of two lineages of one log, that of the later leader holds for the
offsets that it covers. A broker forgets the epochs below its log start, which trimming moves, and an outdated replica
lacks the newest; so we keep every epoch we see. One gap remains: a leader that came and went between two of our runs,
and whose epoch its successor's log has already forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from tiered_storage.errors import LineageContradictedError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.source.partition_log import PartitionLog, epochs_within


def merged(known: Sequence[EpochEntry], observed: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Combine two lineages of one log.

    The lineage with the later leader is taken whole, with what the other has for the offsets below it. An epoch in both
    at the seam begins at the earlier of the two offsets. If they disagree at the seam, although the other knows that
    epoch or a later one, the other is of an abandoned log: nothing of it is taken, since the point where they diverged
    is unknown. Remote segments may supply it: see `whole_lineage`.
    """
    if not known or not observed:
        return tuple(known or observed)
    older, newer = (observed, known) if known[-1].epoch > observed[-1].epoch else (known, observed)
    first = newer[0]
    if epoch_at(older, first.start_offset) != first.epoch and older[-1].epoch >= first.epoch:
        return tuple(newer)
    below = [entry for entry in older if entry.start_offset < first.start_offset]
    is_same_leader = bool(below and below[-1].epoch == first.epoch)
    return (*below, *newer[int(is_same_leader) :])


def up_to(lineage: tuple[EpochEntry, ...], end_offset: int) -> tuple[EpochEntry, ...]:
    """Return the part of `lineage` that begins at or below `end_offset`; it may be `lineage` itself."""
    count = bisect_right(lineage, end_offset, key=lambda entry: entry.start_offset)
    return lineage if count == len(lineage) else lineage[:count]


def agreed_end(known: Sequence[EpochEntry], observed: Sequence[EpochEntry], log_end: int) -> int:
    """Return the offset (exclusive, at most `log_end`) up to which a log with the lineage `observed` is valid.

    It ends early if a later leader is known than the log has, and the two disagree on the epoch of an offset: logs that
    agree on an offset's leader agree on everything below it (KIP-101). A follower's log may lack an epoch in which
    nothing was written.
    """
    if not known or not observed or known[-1].epoch <= observed[-1].epoch:
        return log_end
    start = max(known[0].start_offset, observed[0].start_offset)
    changes = sorted({start, *(entry.start_offset for entry in (*known, *observed) if start < entry.start_offset)})
    differs = (at for at in changes if at < log_end and epoch_at(known, at) != epoch_at(observed, at))
    return next(differs, log_end)


def contradiction(known: Sequence[EpochEntry], observed: Sequence[EpochEntry], log_end: int) -> str | None:
    """Return why a log with the lineage `observed` and the end `log_end` (exclusive) is older than our lineage.

    None if it is not: then the leaders in `known` wrote everything below its end.
    """
    agreed = agreed_end(known, observed, log_end)
    if agreed >= log_end:
        return None
    return (
        f"its last leader epoch is {observed[-1].epoch}, and it ends at offset {log_end - 1}; by the log of the leader "
        f"of epoch {known[-1].epoch}, offset {agreed} has epoch {epoch_at(known, agreed)}, not "
        f"{epoch_at(observed, agreed)}"
    )


def epoch_at(lineage: Sequence[EpochEntry], offset: int) -> int | None:
    """Return the leader epoch under which `lineage` has `offset` written; None below the lineage."""
    at = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    return lineage[at - 1].epoch if at else None


def trusted_lineage(known: Sequence[EpochEntry], log: PartitionLog | None) -> tuple[EpochEntry, ...]:
    """Return the lineage `known`, with what the local log adds (None: out of reach).

    Raises LineageContradictedError if the local log is an outdated replica's, which a later leader truncated.
    """
    if log is None:
        return tuple(known)
    why = contradiction(known, log.leader_epochs, log.last_stable_offset)
    if why is not None:
        raise LineageContradictedError(
            f"{log.place} is the log of an older replica: {why}: nothing of the partition is copied, trimmed or "
            f"expired; {_where_the_leader_is(log)}"
        )
    return merged(known, log.leader_epochs)


def _where_the_leader_is(log: PartitionLog) -> str:
    """Return what to do so that the source shows the log of the partition's present leader, for messages."""
    if log.unsegmented is None:
        return "name the log directory of its present leader in log.dirs"
    return (
        "the next run asks its leader again; if that changes nothing, let bootstrap.servers lead to the cluster that "
        "was copied, not to one that was set back to an earlier state, and look who leads with kafka-topics.sh "
        f"--describe --topic {log.topic_id_partition.topic}"
    )


def on_lineage(segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry]) -> bool:
    """Return whether the leaders in `lineage` wrote all of `segment`, as far back as it reaches."""
    return valid_end(segment, lineage) == segment.end_offset


def valid_end(segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry]) -> int:
    """Return the last offset (inclusive) of `segment` up to which its leaders are those of `lineage`.

    One below its start if there is none. Logs that agree on an offset's leader agree on everything below it (KIP-101).
    Offsets below the lineage are not contradicted, nor are those below the segment's own first epoch: it was copied
    from a log that began inside of it.
    """
    own_start = segment.leader_epochs[0].start_offset if segment.leader_epochs else segment.start_offset
    if not lineage or segment.end_offset < lineage[0].start_offset:
        return segment.end_offset
    known_from = max(own_start, lineage[0].start_offset)
    theirs = epochs_within(segment.leader_epochs, known_from, segment.end_offset)
    ours = epochs_within(lineage, known_from, segment.end_offset)
    if theirs == ours:
        return segment.end_offset
    changes = sorted({known_from, *(entry.start_offset for entry in (*theirs, *ours))})
    contradicted = next((at for at in changes if epochs_within(theirs, at, at) != epochs_within(ours, at, at)), None)
    if contradicted is None:
        return segment.end_offset
    return segment.start_offset - 1 if contradicted <= own_start else contradicted - 1


def whole_lineage(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry]
) -> tuple[EpochEntry, ...]:
    """Return `lineage`, completed below its start by the finished ones of `segments`."""
    if lineage and lineage[0].start_offset <= 0:
        return tuple(lineage)
    starts: dict[int, int] = {}
    for segment in segments:
        if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            continue
        for entry in segment.leader_epochs:
            starts[entry.epoch] = min(entry.start_offset, starts.get(entry.epoch, entry.start_offset))
    if lineage:
        first = lineage[0]
        starts = {
            epoch: start for epoch, start in starts.items() if start < first.start_offset and epoch <= first.epoch
        }
    remembered: list[EpochEntry] = []
    for epoch, start in sorted(starts.items()):
        while remembered and remembered[-1].start_offset >= start:
            remembered.pop()
        remembered.append(EpochEntry(epoch, start))
    is_same_leader = bool(remembered and lineage and remembered[-1].epoch == lineage[0].epoch)
    return (*remembered, *lineage[int(is_same_leader) :])
