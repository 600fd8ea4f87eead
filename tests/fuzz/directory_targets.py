"""Target: a whole log directory in which one file holds any bytes, opened for writing, read, and written to."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fuzz.segments import mended
from fuzz.survivors import (
    Survivors,
    check_what_is_read_of_a_broken_segment,
    segment_content,
    survey,
    survivors,
)
from fuzz.target import Target
from support.local_logs import NOW, TOPIC_ID, records
from support.transactions import next_offset
from tiered_storage.errors import CorruptRecordError, OffsetOutOfRangeError, TieredStorageError
from tiered_storage.kafka_log.files.directory_lock import LOCK_FILE
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA
from tiered_storage.kafka_log.kernels.constants import HIGHEST_OFFSET
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record_batch import Compression

_CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=0)
_MEND = 1
_UNCLEAN = 2
_MAY_STOP = (
    META_PROPERTIES,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
)
"""Files that cannot be rebuilt if they are broken, because nothing else has their content."""


def open_directory(content: bytes) -> None:
    """Replace one file by `content`, which begins with two bytes of choices; nothing else may be lost."""
    if len(content) < 2:
        return
    names, root = list(sound_files()), _work_directory() / "logs"
    name = names[content[0] % len(names)]
    changed = content[2:]
    if name.endswith(".log") and content[1] & _MEND:
        changed = b"".join(mended(changed, with_codecs=False))
    files = {**sound_files(), name: changed}
    if content[1] & _UNCLEAN:
        files.pop(CLEAN_SHUTDOWN, None)
    _lay_out(root, files)
    for _ in range(2):
        if not _use(root, root / name):
            return


def _use(root: Path, changed: Path) -> bool:
    """Open the directory in which the file `changed` may be anything, read and write; say whether it opens."""
    was_clean = (root / CLEAN_SHUTDOWN).is_file()
    files = {path.name: path.read_bytes() for path in (root / "orders-0").iterdir()}
    try:
        writer = LogDirectoryWriter.open(root, _CONFIG, clock=lambda: NOW)
    except TieredStorageError as error:
        assert str(changed) in str(error), f"an error of another file: {error}"
        is_due = changed.name in _MAY_STOP or _may_not_be_cut(files, changed)
        assert is_due or _expected(root, files, was_clean=was_clean).refused is not None, f"no error is due: {error}"
        return False
    with writer:
        # They could be read, or the directory would not have opened; opening it changes none of them.
        start = _said(root / LOG_START_OFFSET_CHECKPOINT, 0)
        log = writer.log("orders", 0)
        expected = _expected(root, files, was_clean=was_clean)
        assert expected.refused is None, "a batch was cut off that is no crash's work"
        if start > expected.end_offset:
            assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (start, start, 1)
        else:
            _check_what_is_left(log, expected, files, changed)
        _read_through(log)
        _append(log)
    return True


def _expected(root: Path, files: dict[str, bytes], *, was_clean: bool) -> Survivors:
    said = _said(root / RECOVERY_POINT_CHECKPOINT, 0)
    return survivors(files, None, closed_at=said) if was_clean else survivors(files, said)


def _may_not_be_cut(files: dict[str, bytes], changed: Path) -> bool:
    """Whether a segment may hold a batch that is whole and yet stops its log: by its header, or as an end marker."""
    if changed.suffix != ".log":
        return False
    later = [int(name[:20]) for name in files if name.endswith(".log") and name > changed.name]
    found = survey(files[changed.name], int(changed.stem), min(later, default=None))
    return found.is_refused or found.has_control


def _check_what_is_left(log: LocalLog, expected: Survivors, files: dict[str, bytes], changed: Path) -> None:
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(expected.segments), f"there are segments {bases}"
    assert log.log_end_offset == expected.end_offset, f"the log ends at {log.log_end_offset}"
    for base, end in zip(bases, [*bases[1:], expected.end_offset], strict=True):
        if end <= log.log_start_offset:
            continue
        path = log.directory / f"{base:020d}.log"
        if path == changed and base not in expected.verified:
            check_what_is_read_of_a_broken_segment(log, path, sound_files()[f"orders-0/{path.name}"], end)
            assert path.read_bytes() == files[path.name], "a closed segment was changed"
        else:
            whole = expected.segments[base]
            read = segment_content(log, base, end)
            assert whole.endswith(read), f"batches that {path.name} does not have"
            assert read == whole or base < log.log_start_offset, f"batches of {path.name} are lost"
    mended = {event.path.name for event in log.mended}
    removed = {f"{base:020d}.log" for base in expected.removed}
    assert {each for each in mended if each[:20] != changed.name[:20]} <= removed, f"{mended} were mended"


def _read_through(log: LocalLog) -> None:
    """Read as a consumer does, up to the first batch that is broken."""
    log.update_high_watermark(log.log_end_offset)
    offset = log.log_start_offset
    try:
        while batches := log.fetch(offset, 300, Isolation.READ_COMMITTED).batches:
            before, offset = offset, next_offset(batches)
            assert offset > before, "a read that does not get on"
    except (CorruptRecordError, OffsetOutOfRangeError) as error:
        assert "orders-0" in str(error), f"an error that names no place: {error}"


def _append(log: LocalLog) -> None:
    before = log.log_end_offset
    if before > HIGHEST_OFFSET - 2:
        return
    log.append(records(2))
    assert log.log_end_offset == before + 2
    assert log.read(before, 1)


def _said(checkpoint: Path, otherwise: int) -> int:
    """What a checkpoint says of the log."""
    return read_offset_checkpoint(checkpoint).get(("orders", 0), otherwise)


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
def sound_files() -> dict[str, bytes]:
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
    for number, content in enumerate(sound_files().values()):
        for flags in (0, _MEND | _UNCLEAN):
            yield bytes([number, flags]) + content


DIRECTORY_TARGETS = (Target("log_directory", open_directory, _seeds),)
