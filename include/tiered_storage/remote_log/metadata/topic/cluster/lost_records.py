"""Notice that the metadata topic lost records: at its beginning, at its end, or behind an unclean leader election.

A host that consumed them must not go on: it would list segments that no other host knows, or miss those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tiered_storage.errors import MetadataMissingError
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import MetadataLog
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.remote_log.metadata.topic.cluster.topic_setup import ensure_same

Consumed: TypeAlias = Mapping[int, tuple[int, int | None]]
"""By metadata partition, up to which offset (exclusive) it was consumed, and the leader epoch of the last batch."""

NOTHING: tuple[int, int | None] = (0, None)
"""What was consumed of a metadata partition at first."""

_REBUILD = "rebuild the metadata from the store with 'tiered-storage rebuild-metadata'"


class LostRecords:
    """Compares what a host consumed with the topic of `log`; `cache` in a call is the file with what it consumed.

    Methods raise MetadataMissingError for lost records, and what `log` raises. The file is kept: nothing else may have
    the records. A topic that was created again under its name is reported as that.
    """

    def __init__(self, options: TopicOptions, log: MetadataLog) -> None:
        """Ask nothing yet."""
        self._options = options
        self._log = log
        self._agreed: dict[int, tuple[int, int | None]] = {}
        """The leader epochs of what was consumed, and of a leader, whose logs agreed, by metadata partition."""

    def refuse_shortened(
        self, topic: MetadataTopicId, consumed: Consumed, latest: Mapping[int, ListedOffset], cache: Path
    ) -> None:
        """Refuse metadata partitions whose `latest` end is before what was consumed."""
        for number, found in latest.items():
            offset, _ = consumed.get(number, NOTHING)
            if offset > found.offset:
                ensure_same(self._options, self._log, topic)
                raise MetadataMissingError(
                    f"metadata topic {topic.name}, partition {number}: ends at offset {found.offset}, and this host "
                    f"consumed it up to offset {offset}: records of segments are lost: a disk, or an unclean leader "
                    f"election. Keep {cache}, which has them; end all processes, and restore the topic, or {_REBUILD}"
                )

    def refuse_diverged(
        self, topic: MetadataTopicId, consumed: Consumed, leader_epochs: Mapping[int, int | None], cache: Path
    ) -> None:
        """Refuse metadata partitions whose leaders, of `leader_epochs`, have other records than were consumed.

        Only a leader of another epoch than that of the last batch can have a log that diverged. Source: KIP-320.
        """
        asked: dict[int, int] = {}
        for number, leader_epoch in leader_epochs.items():
            _, epoch = consumed.get(number, NOTHING)
            if epoch is None or epoch < 0 or epoch == leader_epoch:
                continue
            if self._agreed.get(number) != (epoch, leader_epoch):
                asked[number] = epoch
        for number, end in self._log.epoch_ends(topic, asked).items() if asked else ():
            offset, _ = consumed[number]
            if end < offset:
                ensure_same(self._options, self._log, topic)
                raise MetadataMissingError(
                    f"metadata topic {topic.name}, partition {number}: has other records from offset {end} on than "
                    f"this host consumed, up to offset {offset}: records of segments are lost by an unclean leader "
                    f"election. Keep {cache}, which has them; end all processes, and {_REBUILD}"
                )
            self._agreed[number] = asked[number], leader_epochs[number]

    @staticmethod
    def refuse_later_start(topic: MetadataTopicId, consumed: Consumed, starts: Mapping[int, int]) -> None:
        """Refuse metadata partitions that begin after what was consumed."""
        for number, start in starts.items():
            offset, _ = consumed.get(number, NOTHING)
            if offset < start:
                raise MetadataMissingError(
                    f"metadata topic {topic.name}, partition {number}: begins at offset {start}, and this host "
                    f"consumed it up to offset {offset}: records of segments are lost. Was retention.ms set, or were "
                    f"records deleted? Restore the topic, or {_REBUILD}"
                )
