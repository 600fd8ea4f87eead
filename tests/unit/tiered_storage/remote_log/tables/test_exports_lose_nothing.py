"""Exports of an interval that gained records since: new records must not hide lost ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.files import files_in
from support.metadata_stores import a_step
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    copy,
    flip_bit,
    held_by,
    segments_of,
    unsynced,
)
from support.tables import carry_out
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.exports import ExportReport
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery
from unit.tiered_storage.remote_log.modelled_logs import COMMIT, ROLL, Ended, ModelledLog, Sent, a_copied_topic

INTERVAL = Interval(NOW + 5_000, NOW + 40_000)
"""Record n has the timestamp NOW + n seconds: offsets 5 to 39, of which those up to 29 are copied."""
BATCH = 5


def export(files: RemoteLogFiles, **changes: Any) -> ExportReport:
    request = ExportRequest(TableQuery("orders"), INTERVAL, files.settings().export_url)
    with unsynced(), files.open() as remote_log:
        return carry_out(remote_log, replace(request, **changes))


def folder(files: RemoteLogFiles) -> Path:
    return files.root / "state" / "exports" / "orders" / INTERVAL.folder


def offsets(files: RemoteLogFiles) -> list[int]:
    """The offsets of all records that a reader of *.parquet finds."""
    paths = sorted(folder(files).glob("*.parquet"))
    return [offset for path in paths for offset in pq.read_table(path).column("offset").to_pylist()]


def copy_more(files: RemoteLogFiles, *still_lost: int) -> None:
    """Copy what the interval lacks: offsets 30 to 39, and more."""
    files.append(4)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    # What is still local was copied again with the others.
    lose(files, *still_lost)


def lose(files: RemoteLogFiles, *starts: int) -> None:
    """Let the remote log have the segments no more that begin there."""
    with unsynced(), files.open() as remote_log:
        lease = held_by(remote_log, "test")
        for segment in segments_of(remote_log):
            if segment.start_offset in starts:
                going = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
                remote_log.context.segments.update_remote_log_segment_metadata(going, lease)
        remote_log.context.leases.release(lease)


def rot(files: RemoteLogFiles, *first_offsets: int) -> None:
    """Break the batches that begin there, in the store."""
    for offset in first_offsets:
        path = files.objects(".log")[offset // (2 * BATCH)]
        flip_bit(path, (path.stat().st_size // 2 if offset % (2 * BATCH) else 0) + 100)


def assert_refused(files: RemoteLogFiles, message: str, **changes: Any) -> None:
    """Assert that an export is refused with this message, and leaves the interval's files unchanged."""
    before = files_in(folder(files))
    with pytest.raises(ConfigurationError, match=message):
        export(files, **changes)
    left = files_in(folder(files))
    assert {name: digest for name, digest in left.items() if not name.startswith("_temporary/")} == before


def test_later_records_do_not_hide_damaged_ones(files: RemoteLogFiles) -> None:
    assert export(files).not_reached == (0,)
    rot(files, 10)
    copy_more(files)
    assert_refused(
        files,
        r"orders/interval=\S+ may .*: offsets 10 to 14 of partition 0 \(\S+\.log at byte 0: .*"
        "'tiered-storage repair --deep'",
    )
    assert offsets(files) == list(range(5, 30))


def test_repaired_records_are_exported_with_later_ones(files: RemoteLogFiles) -> None:
    export(files)
    sound = files.objects(".log")[1].read_bytes()
    rot(files, 10)
    copy_more(files)
    with pytest.raises(ConfigurationError):
        export(files)
    files.objects(".log")[1].write_bytes(sound)
    assert export(files).rows == 35


def test_later_records_do_not_hide_missing_ones(files: RemoteLogFiles) -> None:
    export(files)
    copy_more(files, 10)
    assert_refused(files, r"offsets 10 to 19 of partition 0 \(missing in the remote log\)\. ", allow_gaps=True)
    assert offsets(files) == list(range(5, 30))


def test_segments_broken_or_missing_before_do_not_stop_a_second_export(files: RemoteLogFiles) -> None:
    rot(files, 5)
    lose(files, 10)
    assert export(files, allow_gaps=True).rows == 10
    copy_more(files, 10)
    again = export(files, allow_gaps=True)
    assert (again.changed, again.rows, again.dead_letters) == (True, 20, 1)
    assert offsets(files) == list(range(20, 40))
    assert not export(files, allow_gaps=True).changed


def test_only_newly_broken_batches_are_reported(files: RemoteLogFiles) -> None:
    rot(files, 10)
    assert export(files).rows == 20
    copy_more(files)
    rot(files, 20)
    assert_refused(files, r": offsets 20 to 24 of partition 0 \([^;]*\)\. ")
    assert offsets(files) == [*range(5, 10), *range(15, 30)]


def test_a_broken_batch_before_a_known_gap_is_reported_alone(files: RemoteLogFiles) -> None:
    """Of both, what lies where the earlier export has records counts, and only that."""
    lose(files, 10)
    export(files, allow_gaps=True)
    rot(files, 25)
    copy_more(files, 10)
    assert_refused(files, r": offsets 25 to 29 of partition 0 \([^;]*\)\. ", allow_gaps=True)
    assert offsets(files) == [*range(5, 10), *range(20, 30)]


def test_a_manifest_without_gaps_means_that_there_were_none(files: RemoteLogFiles) -> None:
    lose(files, 10)
    export(files, allow_gaps=True)
    manifest = folder(files) / "_manifest.json"
    text = manifest.read_text()
    begin = text.index(' "missing": [')
    end = text.index("]", begin)
    manifest.write_text(text[:begin] + ' "missing": [' + text[end:])
    copy_more(files, 10)
    assert_refused(files, r"offsets 10 to 19 of partition 0 \(missing in the remote log\)", allow_gaps=True)


def test_a_deleted_dead_letter_file_counts_as_no_dead_letters(files: RemoteLogFiles) -> None:
    rot(files, 10)
    export(files)
    copy_more(files)
    (folder(files) / "_dead_letters.jsonl").unlink()
    assert_refused(files, "offsets 10 to 14 of partition 0")


def test_letters_that_cannot_be_read_are_reported(files: RemoteLogFiles) -> None:
    rot(files, 10)
    export(files)
    copy_more(files)
    (folder(files) / "_dead_letters.jsonl").write_text("torn")
    assert_refused(files, "_dead_letters.jsonl: line 1 is not a BrokenBytes")


def test_a_lost_end_is_not_hidden_by_what_was_repaired(files: RemoteLogFiles) -> None:
    """No gap shows it: the remote log ends earlier than it did."""
    sound = shutil.copytree(files.store, files.root / "sound")
    rot(files, 5, 10, 15)
    assert export(files).rows == 10
    lose(files, 20)
    shutil.copytree(sound, files.store, dirs_exist_ok=True)
    assert_refused(files, r"offsets 20 to 29 of partition 0 \(the remote log ends before them\)")
    assert offsets(files) == list(range(20, 30))


def test_later_records_do_not_hide_a_lost_commit_marker(tmp_path: Path) -> None:
    """Its records are still there, but the later segment with only its commit marker is lost."""
    times = [10_000, 11_000]
    files, _ = a_copied_topic(
        tmp_path, [Sent(times, producer=1), ROLL, Ended(1, COMMIT), ROLL, Sent([50_000]), ROLL, Sent([50_000])]
    )
    query = TableQuery("orders", rows=RowFilter(committed_only=True))
    assert export(files, query=query).rows == len(times)
    with unsynced(), files.open() as remote_log:
        [marker] = [each for each in segments_of(remote_log) if each.start_offset == each.end_offset][:1]
        began = marker.start_offset - len(times)
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        ModelledLog(writer.log("orders", 0)).write(
            [step for time in range(14_000, 20_000, 1_000) for step in (Sent([time]), ROLL)]
        )
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    lose(files, marker.start_offset)
    assert_refused(
        files, f"offsets {began} to {began + 1} of partition 0 .the end of a transaction ",
        query=query, allow_gaps=True,
    )  # fmt: skip
    assert offsets(files) == [began, began + 1]
