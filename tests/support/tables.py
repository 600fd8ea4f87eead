"""Topics as tables in tests: a model of what a table holds, and exports in this process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.remote_logs import LOG_CONFIG, NOW, RemoteLogFiles, a_remote_log, copy, unsynced
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.tables.export_job import run_export_group
from tiered_storage.remote_log.tables.exports import ExportReport, ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
CODECS = (Compression.NONE, Compression.LZ4, Compression.ZSTD)


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch: timestamps behind NOW (ms) of its records, its codec, its producer (0: no transaction)."""

    times: Sequence[int]
    codec: Compression = Compression.NONE
    producer: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a producer's transaction."""

    producer: int
    kind: ControlRecordType


ROLL = "roll"
Step = Sent | Ended | str

times = st.lists(st.integers(-100, 100), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.builds(Sent, times, st.sampled_from(CODECS), st.integers(0, 2)),
        st.builds(Sent, times, st.sampled_from(CODECS), st.integers(0, 2)),
        st.builds(Ended, st.integers(1, 2), st.sampled_from([COMMIT, ABORT])),
        st.just(ROLL),
    ),
    min_size=5,
    max_size=25,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A record as a table has to give it: its batch's first timestamp goes with it, and whether it was committed."""

    record: Record
    batch_begins: int
    committed: bool

    @property
    def offset(self) -> int:
        return self.record.offset


class Model:
    """Writes steps to a partition, and keeps the rows that they make."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._rows: list[tuple[Record, int, int]] = []
        self._open: dict[int, list[int]] = {}
        self._committed: set[int] = set()
        self._sequences: dict[int, int] = {}

    def write(self, steps: Sequence[Step]) -> list[Row]:
        """Write all, end what is open, and close the last segment."""
        for step in steps:
            if isinstance(step, Sent):
                self._send(step)
            elif isinstance(step, Ended):
                self._end(step)
            else:
                self._log.roll()
        for producer in list(self._open):
            self._end(Ended(producer, ABORT if producer == 2 else COMMIT))
        self._log.roll()
        return [Row(record, begins, record.offset in self._committed) for record, begins, _ in self._rows]

    def _send(self, sent: Sent) -> None:
        first = self._log.log_end_offset
        records = [
            Record(first + i, NOW + time, b"key %d" % i, b"value %d" % (first + i), (("trace", b"1"),) * (i % 3))
            for i, time in enumerate(sent.times)
        ]
        options: dict[str, Any] = {}
        offsets = [each.offset for each in records]
        if sent.producer:
            sequence = self._sequences.get(sent.producer, 0)
            self._sequences[sent.producer] = sequence + len(records)
            options = {
                "producer_id": sent.producer, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True,
            }  # fmt: skip
            self._open.setdefault(sent.producer, []).extend(offsets)
        else:
            self._committed.update(offsets)
        self._log.append(records, sent.codec, **options)
        self._rows += [(each, records[0].timestamp, sent.producer) for each in records]

    def _end(self, ended: Ended) -> None:
        if ended.producer not in self._open:
            return
        self._log.append_end_marker(ended.producer, 0, ended.kind)
        offsets = self._open.pop(ended.producer)
        if ended.kind is COMMIT:
            self._committed.update(offsets)


def a_copied_topic(root: Path, steps: Sequence[Step], partition: int = 0) -> tuple[RemoteLogFiles, list[Row]]:
    """Lay a remote log out below `root` whose topic orders was written by `steps` and copied."""
    files = a_remote_log(root, {("orders", partition): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", partition)
        log.roll()
        begin = log.log_end_offset
        rows = Model(log).write(steps)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert all(row.offset >= begin for row in rows)
    return files, rows


EXPECTED = "30 records up to offset 29"
"""What each example prints that reads the files of the table."""


def export_orders(files: RemoteLogFiles) -> Path:
    """Export all of the topic orders, in two intervals; return where exports are."""
    with unsynced(), files.open() as remote_log:
        url = remote_log.settings.export_url
        for number, (begin, end) in enumerate([(NOW, NOW + 12_000), (NOW + 12_000, NOW + 60_000)]):
            request = ExportRequest(TableQuery("orders"), Interval(begin, end), url)
            assert not carry_out(remote_log, request, f"runs/export/{number}").failures
    return files.root / "state" / "exports"


def carry_out(remote_log: RemoteLogManager, request: ExportRequest, folder: str = "runs/export") -> ExportReport:
    """Do all of an export in this thread."""
    with remote_log.tables.export(request, folder) as begun:
        job = begun.write_job(folder)
        for group in range(job.groups):
            run_export_group(remote_log.access(job.files), group)
        return begun.commit(list(job.outcomes()))


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file below a folder, by its name in there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def example(with_words: str) -> str:
    """Return the example of docs/reading.md or docs/tables.md that has these words."""
    texts = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("reading.md", "tables.md")]
    scripts = [
        script for text in texts for script in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
    [script] = [script for script in scripts if with_words in script]
    return str(script)
