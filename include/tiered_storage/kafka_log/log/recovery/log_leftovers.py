"""Finish what a broker left half done in a partition's directory, before the log is opened for writing.

    {name}.deleted    of a segment that is no longer part of the log: deleted
    {name}.tmp        of a file that was being replaced: deleted
    {name}.cleaned    output of an unfinished compaction or split: deleted
    {name}.swap       a finished segment that replaces those whose offsets it covers: they are deleted, and it is
                      renamed; but if a `.cleaned` file of the same or a lower offset shows that a split was
                      interrupted, its parts are deleted. The `.log` is renamed first, so that none of its indexes
                      passes for one of a replaced segment, however often this is interrupted
    index files       without their `.log` file: deleted

Source: LogLoader of released Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.log_segment import DELETED_SUFFIX, SWAP_SUFFIX
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA
from tiered_storage.kafka_log.files.small_files import TEMPORARY_SUFFIX, remove_temporary_files, sync_directory
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

CLEANED_SUFFIX = ".cleaned"

_NAMED_BY_OFFSET = re.compile(r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)(?P<suffix>.*)")
_INDEX_KINDS = ("index", "timeindex", "txnindex")
_SEGMENT_KINDS = ("log", *_INDEX_KINDS)


def clear_leftovers(partition_directory: Path) -> tuple[str, ...]:
    """Clean up `partition_directory`; return the names of the deleted files.

    Raises CorruptRecordError if a segment that was to be swapped in is corrupt: then nothing is deleted for it.
    """
    removed = remove_temporary_files(partition_directory, (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA))
    removed += _remove(partition_directory, lambda _, __, suffix: suffix in (DELETED_SUFFIX, TEMPORARY_SUFFIX))
    cleaned = [offset for offset, _, suffix, _ in _files(partition_directory) if suffix == CLEANED_SUFFIX]
    if cleaned:
        first = min(cleaned)
        removed += _remove(partition_directory, lambda offset, _, suffix: suffix == SWAP_SUFFIX and offset >= first)
        removed += _remove(partition_directory, lambda _, __, suffix: suffix == CLEANED_SUFFIX)
    removed += _swap_in(partition_directory)
    logs = {offset for offset, kind, suffix, _ in _files(partition_directory) if kind == "log" and not suffix}
    removed += _remove(
        partition_directory,
        lambda offset, kind, suffix: not suffix and kind in _INDEX_KINDS and offset not in logs,
    )
    if removed:
        sync_directory(partition_directory)
    return tuple(removed)


def _swap_in(directory: Path) -> list[str]:
    """Delete what the `.swap` segments replace, from the first one's base offset to the last one's end; rename them."""
    swaps = [(offset, kind, path) for offset, kind, suffix, path in _files(directory) if suffix == SWAP_SUFFIX]
    if not swaps:
        return []
    ranges = [(offset, _end_offset(path, offset)) for offset, kind, path in swaps if kind == "log"]
    begin = min((offset for offset, _ in ranges), default=0)
    end = max((end for _, end in ranges), default=0)
    # An empty one covers no offset, and replaces the segment of the same name.
    emptied = {offset for offset, end in ranges if offset == end}
    removed = _remove(
        directory,
        lambda offset, kind, suffix: (
            not suffix and (begin <= offset < end or (offset in emptied and kind in _SEGMENT_KINDS))
        ),
    )
    sync_directory(directory)
    for _, _, path in sorted(swaps, key=lambda swap: (swap[0], swap[1] != "log")):
        path.replace(path.with_name(path.name.removesuffix(SWAP_SUFFIX)))
    sync_directory(directory)
    return removed


def _end_offset(path: Path, base_offset: int) -> int:
    end_offset = base_offset
    for _, batches in iterate_segment(path, base_offset):
        end_offset = int(batches.last_offset[-1]) + 1
    return end_offset


def _remove(directory: Path, chosen: Callable[[int, str, str], bool]) -> list[str]:
    """Delete the files that `chosen` picks by offset, kind and suffix; return their names."""
    removed = []
    for offset, kind, suffix, path in _files(directory):
        if chosen(offset, kind, suffix):
            path.unlink()
            removed.append(path.name)
    return removed


def _files(directory: Path) -> list[tuple[int, str, str, Path]]:
    """Return the files named by an offset: offset, kind, suffix after that, path; sorted by name."""
    files = []
    for path in sorted(directory.iterdir()):
        name = _NAMED_BY_OFFSET.fullmatch(path.name)
        if name is not None and path.is_file():
            files.append((int(name["offset"]), name["kind"], name["suffix"], path))
    return files
