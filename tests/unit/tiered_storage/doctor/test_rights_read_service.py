from __future__ import annotations

from pathlib import Path

from support.command_line import mentions
from support.examinations import examined
from support.remote_logs import a_remote_log


def test_without_a_file_of_rights_it_is_said_that_nobody_reads(tmp_path: Path) -> None:
    [message] = examined(a_remote_log(tmp_path)).ok("read service")
    assert "read.service.rights.file is not set" in message


def test_rights_that_can_be_read_are_counted(tmp_path: Path) -> None:
    rights = tmp_path / "rights.yaml"
    rights.write_text("roles: {A: {read: ['*']}, B: {}}\nusers: {c: {}}\n")
    found = examined(a_remote_log(tmp_path, read_service_rights_file="rights.yaml"))
    [message] = found.ok("read service")
    assert mentions(message, rights, "2 roles", "1 users")


def test_a_broken_file_of_rights_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "rights.yaml").write_text("roles: {A: {reed: ['*']}}\n")
    [message] = examined(a_remote_log(tmp_path, read_service_rights_file="rights.yaml")).wrong("read service")
    assert mentions(message, "rights.yaml, line 1", "roles", "describe, read")


def test_a_file_of_rights_that_others_may_write_is_worth_a_note(tmp_path: Path) -> None:
    rights = tmp_path / "rights.yaml"
    rights.write_text("roles: {}\n")
    for mode, is_noted in ((0o600, False), (0o644, False), (0o664, True), (0o646, True)):
        rights.chmod(mode)
        (root := tmp_path / f"{mode:o}").mkdir()
        notes = examined(a_remote_log(root, read_service_rights_file=str(rights))).notes("read service")
        assert [f"chmod go-w {rights}" in each for each in notes] == [True] * is_noted
