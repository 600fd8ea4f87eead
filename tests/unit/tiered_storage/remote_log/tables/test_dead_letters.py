"""Broken batches are dead letters of an export, and all around them is exported."""

from __future__ import annotations

from typing import Any

import pytest

from support.command_line import mentions
from support.remote_logs import RemoteLogFiles
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tables import export_job
from unit.tiered_storage.remote_log.tables.exported_tables import export, interval_folder, offsets


def test_a_broken_batch_is_a_dead_letter_and_all_around_it_is_exported(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[100] ^= 1
    data.write_bytes(raw)
    report = export(files)
    assert (report.dead_letters, report.rows) == (1, 16)
    assert offsets(files) == [*range(3, 10), *range(15, 24)]
    [letter] = (interval_folder(files) / "_dead_letters.jsonl").read_text().splitlines()
    assert f'"object":"{data.relative_to(files.store)}","position":0,' in letter
    assert '"first_offset":10,"last_offset":14' in letter
    assert "CRC" in letter
    # A batch that two blocks share is one letter.
    assert export(files, block_offsets=4).dead_letters == 1
    # Repaired by hand: the letter goes, the records come.
    raw[100] ^= 1
    data.write_bytes(raw)
    assert export(files).dead_letters == 0
    assert not (interval_folder(files) / "_dead_letters.jsonl").exists()
    assert offsets(files) == list(range(3, 24))


@pytest.mark.parametrize(("position", "bit"), [(22, 0x20), (35, 0x80), (46, 1)], ids=["control", "timestamp", "id"])
def test_a_broken_header_leaves_no_batch_out_in_silence(files: RemoteLogFiles, position: int, bit: int) -> None:
    """It says that the batch is a marker, or of another time: the checksum shows that this is wrong."""
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[position] ^= bit
    data.write_bytes(raw)
    report = export(files)
    assert (report.dead_letters, report.rows) == (1, 16)
    assert '"first_offset":10,"last_offset":14' in (interval_folder(files) / "_dead_letters.jsonl").read_text()


@pytest.mark.parametrize("position", [8, 22, 100], ids=["length", "attributes", "record"])
def test_bytes_broken_in_transit_are_no_dead_letter(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    fetch, broken = ObjectRemoteStorageManager.fetch_log_segment, []

    def breaking(storage: Any, metadata: Any, *place: int) -> Any:
        content = bytearray(b"".join(fetch(storage, metadata, *place)))
        if (key := (metadata.segment_id.id, place)) not in broken:
            broken.append(key)
            content[position] ^= 0x20
        return iter((bytes(content),))

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_log_segment", breaking)
    report = export(files)
    assert (report.dead_letters, report.rows) == (0, 21)
    assert len(broken) > 4
    assert offsets(files) == list(range(3, 24))


def test_a_chunk_whose_headers_are_broken_is_a_dead_letter_to_its_end(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[8:12] = b"\xff\xff\xff\xff"
    data.write_bytes(raw)
    report = export(files)
    assert report.dead_letters == 1
    assert set(offsets(files)) <= {*range(3, 10), *range(15, 24)}
    assert {*range(3, 10), *range(20, 24)} <= set(offsets(files))


def test_a_block_with_too_many_broken_batches_is_not_exported(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_job, "MOST_BROKEN", 1)
    for data in files.objects(".log"):
        raw = bytearray(data.read_bytes())
        for position in (100, len(raw) - 10):
            raw[position] ^= 1
        data.write_bytes(raw)
    report = export(files, block_offsets=100)
    [failed] = report.failures
    assert failed.failure is not None
    assert mentions(failed.failure.message, "more than 1 batches", "decoded")
    assert not failed.failure.retriable
    assert not list(interval_folder(files).glob("*.parquet"))
