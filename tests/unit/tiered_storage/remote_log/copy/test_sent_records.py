from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log, segments_of
from tiered_storage.remote_log.copy import sent_records
from tiered_storage.remote_log.copy.sent_records import is_held_elsewhere, why_other_records
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.storage.listable_storage import ListableStorage


def test_two_unknown_checksums_are_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = sent_records.readable_batches
    with a_copied_remote_log(tmp_path).open() as remote_log:
        [copied, *_] = segments_of(remote_log)
        held_by, storage = [CoveredRange(copied, copied.end_offset)], remote_log.context.storage
        assert isinstance(storage, ListableStorage)
        monkeypatch.setattr(sent_records, "sent_crc32c", lambda *_: None)
        assert is_held_elsewhere(copied, None, 0, held_by, None, (), storage)

        # A copy of the same offsets and size has other batches.
        monkeypatch.setattr(
            sent_records, "readable_batches", lambda *given: (replace(one, crc=one.crc + 1) for one in readable(*given))
        )
        assert not is_held_elsewhere(copied, None, 0, held_by, None, (), storage)


def test_segments_of_unknown_checksums_are_compared_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        known, storage = segments_of(remote_log)[0], remote_log.context.storage
        readable = list(sent_records.readable_batches(known, storage))
        unknown = replace(known, custom_metadata=None)
        others = Coverage((CoveredRange(unknown, unknown.end_offset),))
        monkeypatch.setattr(
            sent_records, "readable_batches", lambda *_: iter([replace(one, crc=one.crc + 1) for one in readable])
        )

        assert why_other_records(known, Coverage((CoveredRange(known, known.end_offset),)), 0, (), storage) is None
        assert why_other_records(unknown, others, 0, (), storage) is not None
