"""What a damaged file, or a disk that fails, costs a log: nothing that is sound, and no file left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.survivors import check_what_is_read_of_a_broken_segment, segment_content, survivors
from support.command_line import mentions
from support.files import files_in
from support.local_logs import NOW, create, records
from support.records import USUAL_EXAMPLES
from support.transactions import next_offset
from tiered_storage.errors import (
    CorruptLogError,
    CorruptRecordError,
)
from tiered_storage.kafka_log.files.directory_lock import ensure_unlocked
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.log import log_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.segment_scan import scan_segment
from unit.tiered_storage.kafka_log.log.small_logs import SMALL_SEGMENTS, many_segments


@pytest.mark.parametrize("recovery_point", [None, 0])
def test_a_batch_whose_offset_lies_in_the_next_segment_is_reported_as_damage(
    tmp_path: Path, recovery_point: int | None
) -> None:
    log = many_segments(tmp_path)
    path = log.segments[0].log_path
    content = bytearray(path.read_bytes())
    position = int(scan_segment(path, 0).position[-1])
    content[position + 7] = 5  # its base offset, which no checksum covers
    path.write_bytes(content)
    log.segments[0].offset_index_path.write_bytes(b"")

    def read() -> None:
        with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=recovery_point) as reopened:
            assert next_offset(reopened.read(0, 1000)) == 2
            reopened.read(2, 1000)

    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=rf"byte {position}.*offset 5\b"):
            read()
    assert path.read_bytes() == content


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def unwritable(path: Path) -> None:
    """Let whoever replaces the small file `path` fail, root as well."""
    path.with_name(path.name + ".tmp").mkdir()


@pytest.mark.parametrize(
    ("start", "checkpoint"),
    [
        (0, "0\n2\n0 0\n9 99\n"),  # epochs past the end are dropped
        (1, "0\n1\n0 0\n"),  # the log start moves the first epoch up
        (50, "0\n1\n0 0\n"),  # the log restarts at its start offset
    ],
)
def test_a_log_that_fails_to_open_leaves_no_file_open(tmp_path: Path, start: int, checkpoint: str) -> None:
    log = many_segments(tmp_path)
    (log.directory / "leader-epoch-checkpoint").write_text(checkpoint)
    unwritable(log.directory / "leader-epoch-checkpoint")
    before = descriptors()

    with pytest.raises(IsADirectoryError):
        LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW, log_start_offset=start)
    assert descriptors() == before
    ensure_unlocked(tmp_path)


def test_a_failed_write_to_a_log_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(directory: Path) -> None:
        raise OSError(f"the disk of {directory} is gone")

    before = descriptors()
    log = create(tmp_path)
    log.append(records())
    with monkeypatch.context() as patched:
        patched.setattr(log_segments, "sync_directory", fails)
        with pytest.raises(OSError, match="is gone"):
            log.roll()
    log.abandon()
    assert descriptors() == before


def damaged(content: bytes, draw: st.DataObject) -> bytes | None:
    """The damaged content of a file; None: the file is deleted."""
    kind = draw.draw(st.sampled_from(["cut", "changed", "replaced", "gone"]), label="damage")
    if kind == "cut":
        return content[: draw.draw(st.integers(0, len(content)))]
    if kind == "changed" and content:
        changed = bytearray(content)
        changed[draw.draw(st.integers(0, len(content) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
        return bytes(changed)
    if kind == "replaced":
        return draw.draw(st.binary(max_size=200))
    return None if kind == "gone" else content


MAY_STOP_A_LOG = ("leader-epoch-checkpoint", "partition.metadata")
"""Files, besides `.log` files, that cannot be rebuilt if they are broken: nothing else has their content."""


@dataclass(frozen=True)
class Sound:
    """A log before anything came over it: its files, and what it knows."""

    files: Mapping[str, bytes]
    producers: tuple[ProducerSnapshotEntry, ...]
    leader_epochs: tuple[EpochEntry, ...]
    aborted: tuple[AbortedTxn, ...]


@pytest.fixture(scope="module")
def sound_log(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    written = many_segments(tmp_path_factory.mktemp("sound"))
    files = files_in(written.directory)
    with LocalLog.open(written.directory, SMALL_SEGMENTS, clock=lambda: NOW) as log:
        aborted = log.fetch(0, 1, Isolation.READ_COMMITTED).aborted
        sound = Sound(files, log.producers, log.leader_epochs, aborted)
    assert files_in(written.directory) == files
    return sound


@settings(max_examples=2 * USUAL_EXAMPLES, deadline=None)
@given(st.data())
def test_whatever_became_of_a_file_no_sound_record_is_lost(
    tmp_path_factory: pytest.TempPathFactory, sound_log: Sound, draw: st.DataObject
) -> None:
    sound = sound_log.files
    directory = tmp_path_factory.mktemp("logs") / "orders-3"
    directory.mkdir()
    name = draw.draw(st.sampled_from(sorted(sound)), label="file")
    path = directory / name
    change = damaged(sound[name], draw)
    files = {each: content for each, content in sound.items() if each != name}
    if change is not None:
        files[name] = change
    for each, content in files.items():
        (directory / each).write_bytes(content)
    recovery_point = draw.draw(st.none() | st.integers(0, 12), label="recovery point")
    expected = survivors(files, recovery_point)

    try:
        log = LocalLog.open(directory, SMALL_SEGMENTS, clock=lambda: NOW, recovery_point=recovery_point)
    except CorruptLogError as error:
        assert error.path == str(path)
        assert name in MAY_STOP_A_LOG or expected.refused == int(name[:20])
        return

    with log:
        assert expected.refused is None
        bases = [segment.base_offset for segment in log.segments]
        assert bases == sorted(expected.segments)
        for base, end in zip(bases, [*bases[1:], expected.end_offset], strict=True):
            if path != log.directory / f"{base:020d}.log" or base in expected.verified:
                assert segment_content(log, base, end) == expected.segments[base]
                continue
            # A closed segment is not read when the log is opened: what is broken in it is found by who reads it.
            check_what_is_read_of_a_broken_segment(log, path, sound[name], end)
            assert path.read_bytes() == files[name]
        assert log.log_end_offset == expected.end_offset
        is_untouched = not name.endswith(".log") or change == sound[name]
        if is_untouched:
            assert log.producers == sound_log.producers
            assert log.leader_epochs == sound_log.leader_epochs or name == "leader-epoch-checkpoint"
        if is_untouched and (not name.endswith(".txnindex") or int(name[:20]) in expected.verified):
            assert log.fetch(0, 1, Isolation.READ_COMMITTED).aborted == sound_log.aborted
        mended = {event.path.name for event in log.mended}
        of_the_same_segment = {each for each in (*sound, name) if each[:20] == name[:20]}
        assert mended <= of_the_same_segment | {f"{base:020d}.log" for base in expected.removed}
        assert (log.truncated_bytes > 0) == any(
            expected.segments.get(base) != files[f"{base:020d}.log"] for base in expected.verified
        )
        assert log.append(records()) == expected.end_offset


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("base", [0, 3, 6])
def test_an_index_that_was_lost_is_reported(tmp_path: Path, kind: str, base: int) -> None:
    log = many_segments(tmp_path)
    before = files_in(log.directory)
    path = log.directory / f"{base:020d}.{kind}"
    path.unlink()

    with LocalLog.open(log.directory, SMALL_SEGMENTS, clock=lambda: NOW) as reopened:
        [event] = map(str, reopened.mended)
        assert mentions(event, f"{path}: ", "missing", "rebuilt")
    assert files_in(log.directory) == before
