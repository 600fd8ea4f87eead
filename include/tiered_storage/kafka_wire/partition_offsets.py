"""Offsets and lineages of many partitions, as their leaders know them.

A lineage is asked for epoch by epoch, from the latest down (OffsetForLeaderEpoch, KIP-101).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_wire.cluster import CALL_SECONDS, ClusterClient
from tiered_storage.kafka_wire.connections.apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import FENCED_LEADER_EPOCH, NETWORK_EXCEPTION, PartitionError
from tiered_storage.kafka_wire.fetch import IsolationLevel
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import ClusterMetadata, TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset

_NO_EPOCH: Final = -1
_LOOK_SECONDS: Final = 30.0
"""How long a partition without a leader is waited for, while all others wait too; an election takes seconds."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Of one partition: the first offset, the high watermark and the last stable offset (both exclusive)."""

    start: int
    high_watermark: int
    stable: int


def ask_offsets(
    client: ClusterClient, partitions: Collection[TopicPartition], seconds: float = CALL_SECONDS
) -> dict[TopicPartition, PartitionOffsets | PartitionError]:
    """Return the offsets of each of `partitions`; each call may take `seconds`. Raises as ClusterClient."""
    failed: dict[TopicPartition, PartitionError] = {}

    def asked(
        spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> Mapping[TopicPartition, ListedOffset]:
        # A partition without a leader is waited for once.
        sound = {each: int(spec) for each in partitions if each not in failed}
        answers = client.list_offsets(sound, isolation=isolation, seconds=min(seconds, _LOOK_SECONDS))
        failed.update({each: one for each, one in answers.items() if isinstance(one, PartitionError)})
        return {each: one for each, one in answers.items() if isinstance(one, ListedOffset)}

    # Ask for the ends before the starts: a start that moves meanwhile is then seen, and no end is too high.
    stable = asked(OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
    ends = asked(OffsetSpec.LATEST)
    starts = asked(OffsetSpec.EARLIEST)
    return {
        each: failed.get(each) or PartitionOffsets(starts[each].offset, ends[each].offset, stable[each].offset)
        for each in partitions
    }


def ask_lineages(
    client: ClusterClient,
    found: ClusterMetadata,
    offsets: Mapping[TopicPartition, PartitionOffsets],
    seconds: float = CALL_SECONDS,
) -> dict[TopicPartition, tuple[EpochEntry, ...] | PartitionError]:
    """Ask for the latest epoch of each partition, then for the one before, down to the one of the log start.

    `found` names the latest epochs. A leader that was elected since then has another one: that is an error if there are
    stable records of it, since their copies would have the wrong epoch. Each call may take `seconds`.
    """
    asked = {each: found.topics[each.topic].partitions[each.partition].leader_epoch for each in offsets}
    ends: dict[TopicPartition, list[EpochEnd]] = {each: [] for each in offsets}
    failed: dict[TopicPartition, PartitionError] = {}
    while asked:
        earlier: dict[TopicPartition, int] = {}
        for each, answer in client.offsets_for_leader_epochs(asked, seconds=seconds).items():
            if isinstance(answer, PartitionError):
                failed[each] = answer
            elif not ends[each] and answer.epoch > _NO_EPOCH and answer.end_offset < offsets[each].stable:
                reason = (
                    f"epoch {asked[each]} ends at offset {answer.end_offset}, before the stable offset "
                    f"{offsets[each].stable}: another leader was elected meanwhile; ask again"
                )
                failed[each] = PartitionError(
                    each.topic, each.partition, OFFSET_FOR_LEADER_EPOCH, FENCED_LEADER_EPOCH, reason
                )
            elif _continues(ends[each], answer, offsets[each].start):
                earlier[each] = answer.epoch - 1
        asked = earlier
    # Once more: a leader forgets the epochs below its log start, and then answers as if the next one began there.
    starts = client.list_offsets(dict.fromkeys(offsets, int(OffsetSpec.EARLIEST)), seconds=seconds)
    for each, start in starts.items():
        if isinstance(start, ListedOffset) and start.offset < offsets[each].start:
            # A log start never moves back. If copies continue over gaps, a false one would make a gap of existing
            # records.
            reason = f"one answer has the log start {offsets[each].start}, the next one {start.offset}: ask again"
            failed[each] = PartitionError(each.topic, each.partition, LIST_OFFSETS, NETWORK_EXCEPTION, reason)
    return {
        each: start if isinstance(start, PartitionError) else failed.get(each) or _entries(ends[each], start)
        for each, start in starts.items()
    }


def _continues(ends: list[EpochEnd], answer: EpochEnd, start: int) -> bool:
    """Add the end of an epoch to those of the later ones in `ends`; return whether to ask for an earlier one.

    A leader that knows no epoch so early answers with the requested epoch, and with the start of its first epoch as the
    end. So if two epochs have the same end, the earlier one is unknown, unless the later one is the latest of all: then
    nothing was written in that one yet.
    """
    if answer.epoch == _NO_EPOCH or (ends and answer.end_offset <= start):
        return False
    if len(ends) > 1 and answer.end_offset == ends[-1].end_offset:
        ends.pop()
        return False
    ends.append(answer)
    return answer.epoch > 0 and answer.end_offset > start


def _entries(ends: Sequence[EpochEnd], start: ListedOffset) -> tuple[EpochEntry, ...]:
    """Return the lineage from `start` on; `ends` has each epoch with its end offset (exclusive), the latest first.

    A leader that knows no epoch below 1 answers for 0 as if it had been there, and nothing is before 0 to show it. It
    gives the log start no epoch then.
    """
    kept = [*ends[:1], *(each for each in ends[1:] if each.end_offset > start.offset)]
    starts = [*(each.end_offset for each in kept[1:]), start.offset][: len(kept)]
    if len(kept) > 1 and kept[-1].epoch == 0 and start.leader_epoch == _NO_EPOCH:
        kept.pop()
        starts.pop()
    return tuple(EpochEntry(each.epoch, begin) for each, begin in zip(reversed(kept), reversed(starts), strict=True))
