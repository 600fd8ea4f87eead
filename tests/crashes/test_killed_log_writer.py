"""A process that is killed while it appends loses nothing that was flushed, and leaves a log that opens sound."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crashes.log_writer import CONFIG, TOPIC, key_at, value_at
from tiered_storage.kafka_log.columnar.decoder import iterate_columns
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_a_killed_writer_leaves_all_that_was_flushed(tmp_path: Path, kills: int) -> None:
    root, chance = tmp_path / "logs", random.Random(kills)  # noqa: S311 -- a test's choices
    with LogDirectoryWriter.create(root, random_uuid()) as writer:
        writer.create_log(TOPIC, 0, random_uuid(), CONFIG)

    flushed = 0
    for number in range(kills):
        flushed = _write_and_die(root, number, chance, flushed)
        _lose_unflushed(root / f"{TOPIC}-0", flushed, chance)
    with LogDirectoryWriter.open(root, CONFIG) as writer:
        end = _check(writer.log(TOPIC, 0))
        assert end >= flushed > 0


def _write_and_die(root: Path, seed: int, chance: random.Random, flushed: int) -> int:
    """Kill a writer at any moment; return the offset up to which all was flushed."""
    command = [sys.executable, "-m", "crashes.log_writer", str(root), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        begun = process.stdout.readline().split()
        assert begun[0] == "from"
        assert int(begun[1]) >= flushed
        time.sleep(chance.random())
        process.send_signal(signal.SIGKILL)
        said = [line.split() for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -signal.SIGKILL
    return max([flushed, *(int(offset) for _, offset in said)])


def _lose_unflushed(directory: Path, flushed: int, chance: random.Random) -> None:
    """Sometimes cut the last segment as a power loss does: anywhere, if nothing was flushed."""
    last = list_segments(directory)[-1].log_path
    if int(last.stem) >= flushed and chance.random() < 0.5:
        os.truncate(last, chance.randrange(last.stat().st_size + 1))


def _check(log: LocalLog) -> int:
    """Check every record, and every index of a closed segment; return the log's end."""
    next_offset = 0
    for segment in log.segments:
        for chunk in iterate_columns(segment.log_path, segment.base_offset, ["offset", "key", "value", "control"]):
            for row in chunk.to_pylist():
                assert row["offset"] == next_offset
                next_offset += 1
                assert row["control"] or (row["key"], row["value"]) == (key_at(row["offset"]), value_at(row["offset"]))
    for segment in log.segments[:-1]:
        built = rebuild_indexes(segment, index_interval_bytes=CONFIG.index_interval_bytes)
        assert built.offset_index == segment.offset_index_path.read_bytes()
        assert built.time_index == segment.time_index_path.read_bytes()
        aborts = segment.transaction_index_path
        assert built.transaction_index == (aborts.read_bytes() if aborts.exists() else b"")
    assert next_offset == log.log_end_offset
    return next_offset
