"""Target: a whole log directory in which one file holds any bytes, opened for writing, read, and written to."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fuzz.segments import mended
from fuzz.target import Target
from support.local_logs import NOW, TOPIC_ID, records
from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_log.control_record import ControlRecordType
from tiered_storage.kafka_log.directory_lock import LOCK_FILE
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log_read import Isolation
from tiered_storage.kafka_log.record_batch import Compression, read_batch_header

_CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
_MEND = 1
_UNCLEAN = 2


def open_directory(content: bytes) -> None:
    """Put `content`, behind two bytes of choices, in the place of one file."""
    if len(content) < 2:
        return
    names, root = list(_sound_files()), _work_directory() / "logs"
    name = names[content[0] % len(names)]
    changed = content[2:]
    if name.endswith(".log") and content[1] & _MEND:
        changed = b"".join(mended(changed, with_codecs=False))
    files = {**_sound_files(), name: changed}
    if content[1] & _UNCLEAN:
        del files[CLEAN_SHUTDOWN]
    _lay_out(root, files)
    try:
        for _ in range(2):
            _use(root)
    except TieredStorageError as error:
        assert str(root) in str(error) or "orders" in str(error), f"an error that names no place: {error}"


def _use(root: Path) -> None:
    with LogDirectoryWriter.open(root, _CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        _read_through(log)
        before = log.log_end_offset
        log.append(records(2))
        assert log.log_end_offset == before + 2
        assert log.read(before, 1)


def _read_through(log: LocalLog) -> None:
    log.update_high_watermark(log.log_end_offset)
    offset = log.log_start_offset
    while batches := memoryview(log.fetch(offset, 300, Isolation.READ_COMMITTED).batches):
        before = offset
        while batches:
            header = read_batch_header(batches, source=str(log.directory))
            offset = header.next_offset
            batches = batches[header.size :]
        assert offset > before, "a read that does not get on"


def _lay_out(root: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "orders-0").mkdir(parents=True)
    for name, content in files.items():
        (root / name).write_bytes(content)


@functools.cache
def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _work_directory() -> Path:
    return Path(_temporary_directory().name)


@functools.cache
def _sound_files() -> dict[str, bytes]:
    """Return the files of a log directory that was closed: a log of several segments, one of them with an abort."""
    root = _work_directory() / "sound"
    with LogDirectoryWriter.create(root, TOPIC_ID, directory_id=TOPIC_ID, clock=lambda: NOW) as writer:
        log = writer.create_log("orders", 0, TOPIC_ID, _CONFIG)
        log.append(records(3), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        for number in range(4):
            log.append(records(2), Compression.LZ4 if number % 2 else Compression.NONE, leader_epoch=number)
        log.append_end_marker(7, 0, ControlRecordType.ABORT)
        log.append(records(2), producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != LOCK_FILE]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _seeds() -> Iterable[bytes]:
    for number, content in enumerate(_sound_files().values()):
        for flags in (0, _MEND | _UNCLEAN):
            yield bytes([number, flags]) + content


DIRECTORY_TARGETS = (Target("log_directory", open_directory, _seeds),)
