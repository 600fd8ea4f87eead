from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log, segments_of
from tiered_storage.remote_log.copy import sent_records
from tiered_storage.remote_log.copy.sent_records import is_held_elsewhere
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.storage.listable_storage import ListableStorage


def test_two_checksums_that_nobody_knows_are_not_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = sent_records.readable_batches
    with a_copied_remote_log(tmp_path).open() as remote_log:
        [copied, *_] = segments_of(remote_log)
        held_by, storage = [CoveredRange(copied, copied.end_offset)], remote_log.storage
        assert isinstance(storage, ListableStorage)
        monkeypatch.setattr(sent_records, "sent_crc32c", lambda *_: None)
        assert is_held_elsewhere(copied, None, 0, held_by, None, (), storage)

        # A copy of the same offsets and size has other batches.
        monkeypatch.setattr(
            sent_records, "readable_batches", lambda *given: (replace(one, crc=one.crc + 1) for one in readable(*given))
        )
        assert not is_held_elsewhere(copied, None, 0, held_by, None, (), storage)
