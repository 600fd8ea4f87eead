"""A copy by Fetch keeps two segments in its work folder, and in memory no more than it fetches at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from servers.real_kafka import RealKafka
from support.live_sites import LONG, LiveSite, finished
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.records.record import Record

MIB = 1 << 20
SEGMENT_BYTES, ANSWER_BYTES = 8 * MIB, MIB
RECORD_BYTES = 100_000
INDEX_BYTES = 64 << 10
"""The most that indexes and producer snapshots of such segments take."""
PROGRAM = Path(sys.executable).with_name("tiered-storage")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most bytes that a copy had in its work folder, and resident in memory; and how many segments it copied."""

    folder: int
    memory: int
    segments: int


def copied(kafka: RealKafka, root: Path, segments: int) -> Peaks:
    """Let a process of its own copy a topic of so many segments, and watch it."""
    topic = f"segments-{segments}"
    kafka.client.create_topic(topic, 1, {"segment.bytes": str(SEGMENT_BYTES), **LONG})
    records = [Record(0, wall_clock(), None, os.urandom(RECORD_BYTES))] * (SEGMENT_BYTES // RECORD_BYTES * segments + 9)
    kafka.client.produce(topic, records, max_in_flight=5, batch_num_messages=4)
    folder = root / topic
    (folder / "tmp").mkdir(parents=True)
    site = LiveSite(kafka, folder, (topic,), {"copy.window.bytes": ANSWER_BYTES})
    command: list[str | Path] = [PROGRAM, "copy", "--workers", "1", "--config", site.config]
    peak_folder = peak_memory = 0
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder / "tmp")}) as copying:
        watched = psutil.Process(copying.pid)
        while copying.poll() is None:
            peak_folder = max(peak_folder, size_of(folder / "tmp"))
            with suppress(psutil.Error):
                peak_memory = max(peak_memory, int(watched.memory_info().rss))
            time.sleep(0.001)
    assert copying.returncode == 0
    with site.open() as remote_log:
        copies = finished(remote_log)
    assert len(copies) >= segments - 1
    return Peaks(peak_folder, peak_memory, len(copies))


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder; of those that are there while it looks."""
    size = 0
    # Path.rglob raises if a folder is removed while it looks.
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).stat().st_size
    return size


def test_neither_work_folder_nor_memory_grows_with_the_log(kafka: RealKafka, tmp_path: Path) -> None:
    few = copied(kafka, tmp_path, 2)
    many = copied(kafka, tmp_path, 10)

    assert many.segments >= 9
    for peaks in (few, many):
        assert SEGMENT_BYTES < peaks.folder <= 2 * SEGMENT_BYTES + INDEX_BYTES
    # The log has seven segments more.
    assert many.memory < few.memory + 2 * SEGMENT_BYTES
