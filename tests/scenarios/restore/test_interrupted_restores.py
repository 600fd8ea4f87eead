"""A second run finishes what a restore left that died (scenario 37)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.restore.restored_topics import create_empty_partitions, partitions_in, records_in, restore
from support.command_line import mentions
from support.remote_logs import RemoteLogFiles, copy, records
from support.simulated_crashes import Died, die
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files import meta_properties, small_files
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT, read_offset_checkpoint
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.remote_log.restore import directory as restoring
from tiered_storage.remote_log.restore.target_directory import TargetDirectory


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_second_run_finishes_what_a_crash_left(
    files: RemoteLogFiles, target: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run dies after it put so many partitions in place."""
    put = TargetDirectory.put_in_place
    names: list[str] = []

    def put_or_die(self: TargetDirectory, name: str) -> None:
        if len(names) == after:
            raise Died
        names.append(name)
        put(self, name)

    monkeypatch.setattr(TargetDirectory, "put_in_place", put_or_die)
    if after == 2:
        monkeypatch.setattr(TargetDirectory, "finish", lambda self: put_or_die(self, ""))
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    # A broker started now would remove the partitions that are not in place.
    left = [name for name in partitions_in(target) if name not in names]
    assert all(name.endswith("-delete") for name in left)
    result = restore(files, target)
    assert result.exit_code == 0, result.err
    assert [row["was_there"] for row in result.rows] == [name in names for name in ("orders-0", "orders-1")]
    assert partitions_in(target) == ["orders-0", "orders-1"]
    assert records_in(target) == records(0, 30)
    assert [path.name for path in target.iterdir() if path.name.startswith(".remote-log")] == []


@pytest.mark.parametrize("after", [0, 1])
def test_a_second_run_takes_over_the_empty_partitions_that_the_first_one_did_not(
    files: RemoteLogFiles, target: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run wrote the checkpoints and died after it emptied so many folders."""
    create_empty_partitions(target)
    unlink = Path.unlink
    emptied: set[Path] = set()

    def unlink_or_die(self: Path, missing_ok: bool = False) -> None:
        if self.parent.parent == target and len(emptied | {self.parent}) > after:
            raise Died
        emptied.update({self.parent} if self.parent.parent == target else ())
        unlink(self, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_or_die)
        with pytest.raises(Died):
            restore(files, target)
    assert read_offset_checkpoint(target / HIGH_WATERMARK_CHECKPOINT)["orders", 1] == 20
    assert restore(files, target).exit_code == 0
    assert records_in(target) == records(0, 30)
    assert records_in(target, 1) == records(0, 20)


@pytest.mark.parametrize("file", [META_PROPERTIES, CLEAN_SHUTDOWN])
def test_a_crash_at_its_very_end_leaves_a_new_directory_that_the_next_run_makes_whole(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Without the mark of a clean stop, a broker would recover and read the whole log."""
    replace = small_files.replace_file

    def write_and_die(path: Path, content: bytes) -> None:
        replace(path, content)
        if path.name == file:
            raise Died

    with monkeypatch.context() as patched:
        for module in (restoring, meta_properties):
            patched.setattr(module, "replace_file", write_and_die)
        with pytest.raises(Died):
            restore(files, target)
    assert restore(files, target).exit_code == 0
    assert (target / CLEAN_SHUTDOWN).is_file()
    assert (target / META_PROPERTIES).is_file()
    assert records_in(target) == records(0, 30)


def test_restored_partitions_stay_though_more_was_copied_since(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = TargetDirectory.put_in_place

    def put_the_first(self: TargetDirectory, name: str) -> None:
        if name != "orders-0":
            raise Died
        put(self, name)

    monkeypatch.setattr(TargetDirectory, "put_in_place", put_the_first)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    files.append(2)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    result = restore(files, target)
    assert result.exit_code == 0, result.err
    assert [(row["end_offset"], row["was_there"]) for row in result.rows] == [(29, True), (19, False)]
    assert records_in(target) == records(0, 30)
    assert records_in(target, 1) == records(0, 20)


def test_a_crash_during_a_write_leaves_nothing_that_looks_complete(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "check_written", die)
    monkeypatch.setattr(TargetDirectory, "discard_staged", lambda *_: None)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    # The first run may have died before it began the second partition.
    assert set(partitions_in(target)) <= {"orders-0.restoring-delete", "orders-1.restoring-delete"}
    assert partitions_in(target)
    assert not read_log_directory_or_none(target)
    assert restore(files, target).exit_code == 0
    assert records_in(target) == records(0, 30)


def read_log_directory_or_none(root: Path) -> object:
    try:
        return read_log_directory(root)
    except InvalidLogDirectoryError:
        return None


def test_an_unfinished_restore_of_something_else_is_reported(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetDirectory, "finish", die)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    result = restore(files, target, "--partitions", "1")
    assert mentions(result.document["message"], target, "another restore")
    assert "orders-" not in result.document["message"]
