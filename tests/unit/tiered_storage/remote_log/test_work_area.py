from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.remote_log.copy_plan import Finding
from tiered_storage.remote_log.storage.local_directory import LocalDirectory
from tiered_storage.remote_log.work_area import WorkArea

FINDINGS = [Finding("orders-0", "one\nline"), Finding("orders-1", "größe")]


@pytest.fixture
def work(tmp_path: Path) -> WorkArea:
    return WorkArea(tmp_path.as_uri(), LocalDirectory(tmp_path))


def test_messages_are_read_as_they_were_written_and_may_be_written_again(work: WorkArea) -> None:
    work.write("runs/1/findings.jsonl", FINDINGS, Finding)
    assert work.read("runs/1/findings.jsonl", Finding) == FINDINGS

    work.write("runs/1/findings.jsonl", FINDINGS[:1], Finding)
    assert work.read("runs/1/findings.jsonl", Finding) == FINDINGS[:1]

    work.write("runs/1/findings.jsonl", [], Finding)
    assert work.read("runs/1/findings.jsonl", Finding) == []


def test_what_is_not_there_is_an_error_unless_it_may_be_missing(work: WorkArea) -> None:
    with pytest.raises(RemoteObjectNotFoundError):
        work.read("runs/1/findings.jsonl", Finding)
    assert work.read_if_there("runs/1/findings.jsonl", Finding) == []


def test_a_broken_message_is_named_by_the_areas_url_and_its_path(work: WorkArea, tmp_path: Path) -> None:
    work.write("findings.jsonl", FINDINGS, Finding)
    (tmp_path / "findings.jsonl").write_bytes(b"{}\n")

    with pytest.raises(ConfigurationError, match=f"{tmp_path.as_uri()}/findings.jsonl: line 1"):
        work.read_if_there("findings.jsonl", Finding)


def test_a_path_cannot_leave_the_area(work: WorkArea) -> None:
    with pytest.raises(ConfigurationError):
        work.write("runs/../../elsewhere", FINDINGS, Finding)


def test_closing_closes_what_is_behind_it(tmp_path: Path) -> None:
    class Client(LocalDirectory):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    client = Client(tmp_path)
    WorkArea(tmp_path.as_uri(), client).close()

    assert client.is_closed
