"""What happens while an audit looks at the store is no anomaly, and it asks the store little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.remote_logs import ENABLED, NOW, RemoteLogFiles, a_remote_log, copy, with_context
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.audit import report as audit_report
from tiered_storage.remote_log.audit.report import AuditReport
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


class Meanwhile(ObjectRemoteStorageManager):
    """A store in which something happens once, as soon as anything of it was listed."""

    def __init__(self, like: RemoteLogManager, happening: Callable[[], None]) -> None:
        assert isinstance(like.context.storage, ObjectRemoteStorageManager)
        super().__init__(like.context.storage._client)
        self._happenings = [happening]

    def list_objects(self, folder: str = "", after: str = "") -> Any:
        found = list(super().list_objects(folder, after))
        self.happen()
        return iter(found)

    def happen(self) -> None:
        if self._happenings:
            self._happenings.pop()()


def test_a_copy_that_ends_after_the_listing_is_no_anomaly(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:

        def copy_more() -> None:
            assert copy(remote_log).is_whole

        report = with_context(remote_log, storage=Meanwhile(remote_log, copy_more)).checks.audit(deep=True)

    assert (report.segments, report.anomalies) == (4, ())


def test_a_deletion_that_ends_after_the_listing_is_no_anomaly(files: RemoteLogFiles) -> None:
    files.properties["topics"] = {"orders": {**ENABLED, "retention.bytes": 1}}
    with files.open() as remote_log:

        def expire() -> None:
            remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
            assert len(remote_log.deletions.delete_marked("expire").deleted) == 3

        report = with_context(remote_log, storage=Meanwhile(remote_log, expire)).checks.audit()

    assert (report.segments, report.anomalies) == (0, ())


@pytest.mark.parametrize("deep", [False, True])
def test_a_deletion_that_ends_while_a_segment_is_looked_at_is_no_anomaly(files: RemoteLogFiles, deep: bool) -> None:
    files.properties["topics"] = {"orders": {**ENABLED, "retention.bytes": 1}}
    with files.open() as remote_log:

        class Late(Meanwhile):
            def list_objects(self, folder: str = "", after: str = "") -> Any:
                # Nothing was there yet when it was listed, so that every object is looked for once more.
                return super().list_objects(folder, after) if folder else iter(())

        def expire() -> None:
            remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
            remote_log.deletions.delete_marked("expire")

        report = with_context(remote_log, storage=Late(remote_log, expire)).checks.audit(deep=deep)

    assert report.anomalies == ()


def test_a_custom_store_that_cannot_list_cannot_be_audited(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as opened:
        remote_log = with_context(opened, storage=object())

        with pytest.raises(ConfigurationError, match="audited"):
            remote_log.checks.audit()


def test_the_store_is_listed_once_and_no_object_asked_for_singly_while_all_is_well(files: RemoteLogFiles) -> None:
    class Counting(Meanwhile):
        asked: ClassVar[list[str]] = []

        def list_objects(self, folder: str = "", after: str = "") -> Any:
            self.asked.append(f"list {folder}")
            return super().list_objects(folder, after)

        def object_size(self, name: str) -> int:
            self.asked.append(name)
            return super().object_size(name)

    with files.open() as remote_log:
        counted = with_context(remote_log, storage=Counting(remote_log, lambda: None))
        assert counted.checks.audit().anomalies == ()

    assert Counting.asked == ["list "]


def test_the_first_of_many_anomalies_are_named_and_the_others_counted(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_report, "MOST_ANOMALIES", 2)
    for path in files.objects():
        path.unlink()
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert (len(report.anomalies), report.omitted, report.anomaly_count) == (2, 7, 9)
    assert [topic.anomalies for topic in report.topics] == [9]
    assert "7 more anomalies" in report.notices[0]


def test_a_report_survives_being_written_down(files: RemoteLogFiles) -> None:
    files.objects(".log")[0].unlink()
    with files.open() as remote_log:
        report = remote_log.checks.audit()
        remote_log.context.work.write_report("audit.jsonl", [report], AuditReport)
        [again] = remote_log.context.work.read_report("audit.jsonl", AuditReport)

    assert again == report
    assert again.topics == report.topics
