"""Any file is dumped or reported; the inputs are golden files with changed bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.logs import GoldenLogs
from support.records import USUAL_EXAMPLES
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.dump.dump_event import DumpProblem
from tiered_storage.kafka_log.dump.file_dump import dump_file, find_files
from tiered_storage.kafka_log.dump.file_kind import FileKind, KafkaFile, recognize
from unit.tiered_storage.kafka_log.dump.dumps import dumped, notes, problems

GOLDEN = GoldenLogs(Path(__file__).parents[4] / "golden")
FILES = list(GOLDEN.files())
NAMES = {
    FileKind.LOG: "00000000000000000000.log",
    FileKind.OFFSET_INDEX: "00000000000000000000.index",
    FileKind.TIME_INDEX: "00000000000000000000.timeindex",
    FileKind.TRANSACTION_INDEX: "00000000000000000000.txnindex",
    FileKind.PRODUCER_SNAPSHOT: "00000000000000000000.snapshot",
    FileKind.LEADER_EPOCHS: "leader-epoch-checkpoint",
    FileKind.OFFSET_CHECKPOINT: "replication-offset-checkpoint",
    FileKind.PARTITION_METADATA: "partition.metadata",
    FileKind.META_PROPERTIES: "meta.properties",
    FileKind.CLEAN_SHUTDOWN: ".kafka_cleanshutdown",
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for all examples of a test: one for each would be slow."""
    return tmp_path_factory.mktemp("workshop")


def show(directory: Path, kind: FileKind, content: bytes, offset: int = 0) -> None:
    """Show a file with this content to its end; whatever is raised fails the test."""
    path = directory / NAMES[kind].replace("0" * 20, f"{offset:020d}")
    path.write_bytes(content)
    try:
        file = recognize(path)
        assert file is not None
        for event in dump_file(file, with_records=True):
            if isinstance(event, DumpProblem):
                assert Path(event.error.path).name == path.name
                assert 0 <= event.error.position <= len(content)
                assert event.error.reason
    finally:
        path.unlink()


@given(st.sampled_from(list(NAMES)), st.binary(max_size=300))
@settings(max_examples=2 * USUAL_EXAMPLES, deadline=None)
def test_any_bytes_are_shown_or_named(workshop: Path, kind: FileKind, content: bytes) -> None:
    show(workshop, kind, content)


@given(st.sampled_from(FILES), st.data())
@settings(max_examples=3 * USUAL_EXAMPLES, deadline=None)
def test_changed_golden_bytes_are_shown_or_named(workshop: Path, file: KafkaFile, data: st.DataObject) -> None:
    content = bytearray(file.path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=4)) if content else []:
        content[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)))
    show(workshop, file.kind, bytes(content[:end]), file.offset)


def test_files_of_a_directory_and_of_those_in_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "orders-0" / "deeper").mkdir(parents=True)
    for name in ("meta.properties", ".lock", "orders-0/00000000000000000000.log", "orders-0/notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "orders-0/deeper/partition.metadata").touch()
    found = [file.path.relative_to(tmp_path).as_posix() for file in find_files([tmp_path])]
    assert found == ["meta.properties", "orders-0/00000000000000000000.log"]


def test_a_file_of_no_known_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "segment.log").touch()
    with pytest.raises(ConfigurationError, match=r"'segment\.log' "):
        find_files([tmp_path / "segment.log"])
    with pytest.raises(ConfigurationError, match="no Kafka file"):
        find_files([tmp_path])


def test_a_file_removed_meanwhile_is_not_reported_as_damage(tmp_path: Path) -> None:
    for name in NAMES.values():
        if name != "partition.metadata":
            events = dumped(tmp_path / name)
            assert problems(events) == []
    [note] = notes(dumped(tmp_path / NAMES[FileKind.LOG]))
    assert "removed" in note


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / NAMES[FileKind.LOG]
    path.touch(mode=0)
    with _without_roots_rights():
        [(name, _, reason)] = problems(dumped(path))
    assert name == path.name
    assert "Permission denied" in reason


def test_a_dump_names_files_that_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / NAMES[FileKind.META_PROPERTIES]
    path.mkdir()
    [(name, _, reason)] = problems(dumped(path))
    assert name == path.name
    assert "Is a directory" in reason


@contextmanager
def _without_roots_rights() -> Iterator[None]:
    """Root may read everything: continue as the user nobody meanwhile."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
