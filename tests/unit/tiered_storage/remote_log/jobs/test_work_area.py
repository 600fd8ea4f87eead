from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError, UntrustedMessageError
from tiered_storage.remote_log.jobs.work_area import MOST_MESSAGE_BYTES, MOST_REPORT_BYTES, WorkArea, to_lines
from tiered_storage.remote_log.model import Finding
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

FINDINGS = [Finding("orders-0", "one\nline"), Finding("orders-1", "größe")]
PATH = "runs/1/findings.jsonl"


@pytest.fixture
def work(tmp_path: Path) -> WorkArea:
    return area(tmp_path)


def area(root: Path, key: bytes = b"the metadata's key") -> WorkArea:
    return WorkArea(root.as_uri(), LocalDirectory(root), lambda: key)


def test_messages_are_read_as_they_were_written_and_may_be_written_again(work: WorkArea) -> None:
    work.write(PATH, FINDINGS, Finding)
    assert work.read(PATH, Finding) == FINDINGS

    work.write(PATH, FINDINGS[:1], Finding)
    assert work.read(PATH, Finding) == FINDINGS[:1]

    work.write(PATH, [], Finding)
    assert work.read(PATH, Finding) == []


def test_a_missing_message_is_an_error_unless_it_may_be_missing(work: WorkArea) -> None:
    with pytest.raises(RemoteObjectNotFoundError):
        work.read(PATH, Finding)
    assert work.read_if_there(PATH, Finding) == []
    assert work.read_report(PATH, Finding) == []


def without_signature(raw: bytes) -> bytes:
    return b"".join(raw.splitlines(keepends=True)[:-1])


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "unsigned": lambda _: to_lines(FINDINGS, Finding),
    "signature removed": without_signature,
    "a message removed": lambda raw: b"".join(raw.splitlines(keepends=True)[1:]),
    "a message added": lambda raw: to_lines(FINDINGS[:1], Finding) + raw,
    "a message after the signature": lambda raw: raw + to_lines(FINDINGS[:1], Finding),
    "one letter changed": lambda raw: raw.replace(b"orders-1", b"orders-2"),
    "cut short": lambda raw: raw[:-1],
    "signature of nothing": lambda raw: without_signature(raw) + b'{"hmac_sha256":""}\n',
    "no text": lambda raw: bytes(reversed(raw)),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_message_that_is_not_as_it_was_signed_is_refused_by_name(work: WorkArea, tmp_path: Path, name: str) -> None:
    work.write(PATH, FINDINGS, Finding)
    file = tmp_path / PATH
    file.write_bytes(FORGERIES[name](file.read_bytes()))

    for read in (work.read, work.read_if_there):
        with pytest.raises(UntrustedMessageError, match=f"{tmp_path.as_uri()}/{PATH}") as refused:
            read(PATH, Finding)
        assert "start the run again" in str(refused.value)
        assert not refused.value.retriable


def test_a_message_of_another_place_run_or_remote_log_is_refused(work: WorkArea, tmp_path: Path) -> None:
    work.write(PATH, FINDINGS, Finding)
    (tmp_path / "runs/2").mkdir()
    for moved in ("runs/2/findings.jsonl", "runs/1/others.jsonl"):
        (tmp_path / moved).write_bytes((tmp_path / PATH).read_bytes())
        with pytest.raises(UntrustedMessageError, match=moved):
            work.read(moved, Finding)
    with pytest.raises(UntrustedMessageError):
        area(tmp_path, b"another remote log's key").read(PATH, Finding)


def test_a_jobs_key_signs_what_is_of_that_job_alone(work: WorkArea, tmp_path: Path) -> None:
    job = work.of_job("runs/1")
    # A worker has the key, and nothing that the key came from.
    worker = area(tmp_path, job.key)
    worker.write(PATH, FINDINGS, Finding)
    assert job.read(PATH, Finding) == FINDINGS
    for other in (work, work.of_job("runs/2"), work.of_job("runs/1/1"), worker.of_job("runs/1")):
        with pytest.raises(UntrustedMessageError):
            other.read(PATH, Finding)


def test_a_message_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    class Replacing(LocalDirectory):
        replace: Callable[[], None] | None = None

        def size(self, name: str) -> int:
            size = super().size(name)
            replace, self.replace = self.replace, None
            if replace is not None:
                replace()
            return size

    client = Replacing(tmp_path)
    work = WorkArea(tmp_path.as_uri(), client, lambda: b"key")
    work.write(PATH, FINDINGS[:1], Finding)
    client.replace = lambda: work.write(PATH, FINDINGS, Finding)

    assert work.read(PATH, Finding) == FINDINGS


def test_a_broken_message_is_named_by_the_areas_url_and_its_path(work: WorkArea, tmp_path: Path) -> None:
    work.write("texts.jsonl", ["no finding"], str)

    with pytest.raises(ConfigurationError, match=f"{tmp_path.as_uri()}/texts.jsonl: line 1"):
        work.read_if_there("texts.jsonl", Finding)


def test_reports_are_plain_and_need_no_key(tmp_path: Path) -> None:
    work = WorkArea(tmp_path.as_uri(), LocalDirectory(tmp_path))
    work.write_report(PATH, FINDINGS, Finding)

    assert (tmp_path / PATH).read_bytes() == to_lines(FINDINGS, Finding)
    assert work.read_report(PATH, Finding) == FINDINGS
    with pytest.raises(UntrustedMessageError, match="reports only"):
        work.read(PATH, Finding)
    with pytest.raises(UntrustedMessageError, match="reports only"):
        work.write(PATH, FINDINGS, Finding)


def test_more_than_is_read_of_a_file_is_refused_by_its_size(tmp_path: Path) -> None:
    class Measured(LocalDirectory):
        def get_range(self, name: str, start: int, length: int) -> bytes:
            raise AssertionError(f"{length} bytes of {name} at {start} were read")

    (tmp_path / PATH).parent.mkdir(parents=True)
    work = WorkArea(tmp_path.as_uri(), Measured(tmp_path), lambda: b"key")
    reads = {MOST_MESSAGE_BYTES: (work.read, work.read_if_there), MOST_REPORT_BYTES: (work.read_report,)}
    for most, of_kind in reads.items():
        with (tmp_path / PATH).open("wb") as sparse:
            sparse.truncate(most + 1)
        for read in of_kind:
            with pytest.raises(ConfigurationError, match=f"{PATH}: .*{most + 1} bytes, .*{most} "):
                read(PATH, Finding)


def test_a_path_cannot_leave_the_area(work: WorkArea) -> None:
    with pytest.raises(ConfigurationError):
        work.write("runs/../../elsewhere", FINDINGS, Finding)


def test_closing_also_closes_the_client(tmp_path: Path) -> None:
    class Client(LocalDirectory):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    client = Client(tmp_path)
    WorkArea(tmp_path.as_uri(), client).close()

    assert client.is_closed


def test_a_folder_is_removed_with_all_of_its_files_and_no_other(work: WorkArea, tmp_path: Path) -> None:
    for path in (PATH, "runs/1/deeper/one.jsonl", "runs/10/other.jsonl"):
        work.write(path, FINDINGS, Finding)

    work.remove("runs/1")
    work.remove("runs/1")

    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()] == [
        "runs/10/other.jsonl"
    ]
