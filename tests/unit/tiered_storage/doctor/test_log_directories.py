from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.command_line import run_on
from support.examinations import examined
from support.remote_logs import a_remote_log, flip_bit, topic_id
from tiered_storage.doctor import log_directories
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from unit.unprivileged import as_nobody

TWO = {("orders", 0): 1, ("payments", 0): 1}


def test_a_directory_that_can_be_read_is_as_it_must_be(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, TWO)

    found = examined(files)

    assert found.wrong() == []
    [message] = found.ok("log.dirs")
    assert str(files.log_directory) in message
    assert "2 partitions of 2 topics" in message


def test_no_directory_is_worth_a_note(tmp_path: Path) -> None:
    [message] = examined(a_remote_log(tmp_path, log_dirs=[])).notes("log.dirs")

    assert "| set log.dirs" in message


def test_doctor_reports_folders_that_are_no_log_directories_and_checks_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    files = a_remote_log(tmp_path)
    files.properties["log.dirs"] = [str(tmp_path / name) for name in ("nowhere", "empty", "logs")]

    found = examined(files)

    nowhere, empty = found.wrong("log.dirs")
    assert str(tmp_path / "nowhere") in nowhere
    assert str(tmp_path / "empty") in empty
    assert len(found.ok("log.dirs")) == 1


def test_a_directory_that_somebody_holds_is_wrong(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with DirectoryLock.acquire(files.log_directory):
        [message] = examined(files).wrong()

    assert str(files.log_directory) in message
    assert "in use" in message


def test_a_directory_without_high_watermarks_is_wrong_until_its_end_is_said_to_be_stable(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / "replication-offset-checkpoint").unlink()

    message, partition = examined(files).wrong()
    assert "high watermarks" in message
    assert "log.end.is.stable: true" in message.partition(" | ")[2]
    assert "orders-0" in partition

    files.properties["log.end.is.stable"] = True
    assert examined(files).wrong() == []


def test_a_checkpoint_that_is_broken_is_wrong(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / "log-start-offset-checkpoint").write_text("what is this\n")

    [message] = examined(files).wrong()

    assert "log-start-offset-checkpoint: at byte 0" in message


def test_partitions_that_cannot_be_read_are_named_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path, {("orders", number): 1 for number in range(4)})
    for number in range(3):
        flip_bit(files.partition_directory(number=number) / "leader-epoch-checkpoint", 0)
    monkeypatch.setattr(log_directories, "MOST_PARTITIONS_NAMED", 2)

    first, second, more = examined(files).wrong("log.dirs")

    assert "orders-0" in first
    assert "orders-1" in second
    assert "1 more" in more
    assert "orders" not in more


def test_doctor_notes_folders_that_are_left_out(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    for number in range(7):
        (files.log_directory / f"lost+found{number}").mkdir()

    [message] = examined(files).notes("log.dirs")

    assert "lost+found4 and 2 more: " in message
    assert "topic-partition" in message


def test_one_partition_in_two_directories_is_wrong(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    shutil.copytree(files.log_directory, tmp_path / "copy")
    files.properties["log.dirs"] = [str(files.log_directory), str(tmp_path / "copy")]

    [message] = examined(files).wrong()

    assert f"{files.partition_directory()} and {tmp_path / 'copy' / 'orders-0'} " in message


def test_a_name_that_the_store_cannot_hold_is_wrong(tmp_path: Path) -> None:
    long = "o" * 240
    files = a_remote_log(tmp_path)
    with LogDirectoryWriter.open(files.log_directory, LogConfig(), clock=lambda: 0) as writer:
        writer.create_log(long, 0, topic_id(long), LogConfig())

    [message] = examined(files).wrong()

    assert f"{long}-0 " in message
    assert files.store.as_uri() in message
    assert "S3" in message


def test_rights_that_are_missing_are_reported() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        files = a_remote_log(root)
        config = files.config
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        files.log_directory.chmod(0o555)
        found = as_nobody(lambda: examined(config))
        [note] = found.notes("log.dirs")
        assert str(files.log_directory) in note
        assert "write" in note
        assert "trimm" in note.partition(" | ")[2]

        segment = files.local_segments()[1].log_path
        segment.chmod(0o000)
        [message] = as_nobody(lambda: examined(config)).wrong("log.dirs")
        assert str(segment.parent) in message

        files.log_directory.chmod(0o000)
        [message] = as_nobody(lambda: examined(config)).wrong("log.dirs")
        assert f"{files.log_directory}: user 65534 " in message
        assert "read" in message
        assert "right" in message.partition(" | ")[2]


def test_a_directory_whose_broker_did_not_stop_in_order_is_worth_a_note(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / ".kafka_cleanshutdown").unlink()

    [message] = examined(files).notes("log.dirs")

    assert str(files.log_directory) in message
    assert ".kafka_cleanshutdown" in message


@pytest.mark.parametrize(
    ("name", "where", "why"),
    [
        ("rsm.config.url", "logs/store", "rsm.config.url is {0}, inside {1} of"),
        ("rsm.config.url", "logs", "rsm.config.url is {0}, inside {1} of"),
        ("rsm.config.url", "", "{1} of log.dirs lies inside {0}, "),
        ("work.url", "logs/work", "work.url is {0}, inside {1} of"),
        ("export.url", "link/exports", "export.url is {2}, inside {1} of"),
        ("state.directory", "logs/state", "state.directory is {0}, inside {1} of"),
        ("rlmm.config.url", "sqlite:///{root}/logs/metadata.db", "rlmm.config.url is {1}/metadata.db, inside {1} of"),
        ("rlmm.config.url", "sqlite:///{root}/link/m/m.db", "rlmm.config.url is {1}/m/m.db, inside {1} of"),
        ("rlmm.config.url", "sqlite:///logs/metadata.db", "rlmm.config.url is {1}/metadata.db, inside {1} of"),
    ],
)
def test_a_place_of_ours_inside_a_log_directory_is_refused_and_named(
    tmp_path: Path, name: str, where: str, why: str
) -> None:
    files = a_remote_log(tmp_path)
    (tmp_path / "link").symlink_to(files.log_directory)
    is_url = where.startswith("sqlite")
    files.properties[name] = where.format(root=tmp_path) if is_url else str(tmp_path / where)
    expected = why.format(tmp_path / where, files.log_directory, files.log_directory / "exports")
    before = sorted(files.log_directory.rglob("*"))

    assert any(expected in message for message in examined(files).wrong("log.dirs"))
    for command in ("plan", "copy", "retain", "audit", "topics enable orders"):
        ended = run_on(files, *command.split())
        assert ended.exit_code == 1
        assert expected in ended.err
    assert sorted(path for path in files.log_directory.rglob("*") if "doctor" not in str(path)) == before
