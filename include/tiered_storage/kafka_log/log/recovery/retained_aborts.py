"""Keeps entries of a transaction index that the log alone cannot give back, while the others are rebuilt.

If producers are known only from an offset on, a transaction aborted in a segment may have begun before that offset, in
a segment that is gone. The log has its abort marker, but only the old index has its first offset. An entry stays if its
marker is in the segment, and if it begins before the known part or where the log shows it too. All other entries come
from the log. The lower of two last stable offsets counts: any transaction still open at the marker holds it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, read_sound_entries
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import abort_markers


class RetainedAborts:
    """Reads the batches of one segment along with the producers, and then completes their index entries."""

    def __init__(self, segment: LogSegment, seen_from: int | None) -> None:
        """Take the entries of the index as it is, even if it is broken.

        Batches of producers are known from offset `seen_from` (inclusive) on. None: all are known, and the old index is
        ignored.
        """
        self._segment = segment
        self._seen_from = seen_from or 0
        found = read_sound_entries(segment.transaction_index_path, segment.base_offset) if seen_from else ()
        self._written = {entry.last_offset: entry for entry in found}
        self._kept: dict[int, AbortedTxn] = {}

    def feed(self, window: memoryview, batches: BatchTable) -> None:
        """Take the segment's next batches, whose bytes are `window`.

        Raises CorruptRecordError if an end marker cannot be read.
        """
        if not self._written:
            return
        for producer_id, offset in abort_markers(self._segment.log_path, window, batches):
            entry = self._written.get(offset)
            if entry is not None and entry.producer_id == producer_id:
                self._kept[offset] = entry

    def joined_with(self, aborted: Sequence[AbortedTxn]) -> tuple[AbortedTxn, ...]:
        """Return the whole index; `aborted` are the entries from the batches, in the order of their markers."""
        if not self._kept:
            return tuple(aborted)
        of_log = {entry.last_offset: entry for entry in aborted}
        entries: list[AbortedTxn] = []
        earliest: int | None = None
        for offset in sorted({*self._kept, *of_log}, reverse=True):
            entry = self._chosen(self._kept.get(offset), of_log.get(offset))
            if entry is None:
                continue
            if earliest is not None and earliest < entry.decided_up_to:
                entry = replace(entry, last_stable_offset=earliest)
            entries.append(entry)
            earliest = entry.first_offset if earliest is None else min(earliest, entry.first_offset)
        return tuple(reversed(entries))

    def _chosen(self, written: AbortedTxn | None, of_log: AbortedTxn | None) -> AbortedTxn | None:
        if written is None:
            return of_log
        began_before = written.first_offset < self._seen_from
        if of_log is None:
            return written if began_before else None
        if not (began_before or written.first_offset == of_log.first_offset):
            return of_log
        if of_log.decided_up_to < written.decided_up_to:
            return replace(written, last_stable_offset=of_log.last_stable_offset)
        return written
