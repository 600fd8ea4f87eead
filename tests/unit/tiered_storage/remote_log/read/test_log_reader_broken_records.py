"""Records that belie their batch's header, under a right checksum, are named with the file or object they are in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.remote_logs import BATCH_BYTES, ORDERS_0, a_copied_remote_log, batches_in, rewrite_segment
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader


def break_records(path: Path) -> None:
    """Let the first record of a segment's second batch have another length, and the batch a checksum that is right."""
    first, second = batches_in(path)
    broken = bytearray(second)
    broken[61] ^= 0x10
    struct.pack_into(">I", broken, 17, crc32c(broken[21:]))
    rewrite_segment(path, [first, bytes(broken)])


@pytest.mark.parametrize("is_local", [True, False])
def test_a_read_names_file_and_position_of_broken_records(tmp_path: Path, is_local: bool) -> None:
    files = a_copied_remote_log(tmp_path)
    local, remote = files.local_segments()[1].log_path, files.objects(".log")[1]
    broken = local if is_local else remote
    break_records(broken)
    if not is_local:
        for segment in files.local_segments()[:2]:
            segment.log_path.unlink()
    with (
        files.open() as remote_log,
        BlockingLogReader(remote_log.open_log_reader()) as reader,
        pytest.raises(CorruptRecordError) as raised,
    ):
        list(reader.records(ORDERS_0, 15))
    assert broken.name in str(raised.value)
    assert str(BATCH_BYTES) in str(raised.value)
