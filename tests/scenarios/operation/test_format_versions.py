"""Bad input: sound objects that a later release wrote, and that this release cannot judge.

No command deletes, marks or repairs them, or trims because of them. Reports call them objects of a later release, never
damaged. Copies continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from scenarios.bound_sites import DELETABLE
from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    copy,
    flip_bit,
    is_kept_by_the_store,
    segments_of,
    unsynced,
)
from tiered_storage.errors import LaterVersionError
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage import commit_marker, index_bundle
from tiered_storage.remote_log.storage.documents import manifest, partition_manifest

TOPICS = {"orders": DELETABLE, "former": DELETABLE}

FORMATS: dict[str, tuple[ModuleType, *tuple[str, ...]]] = {
    "manifest": (manifest, "FORMAT_VERSION", "PLAIN_VERSION"),
    "commit marker": (commit_marker, "FORMAT_VERSION", "PLAIN_VERSION"),
    "bundle": (index_bundle, "VERSION"),
    "partition manifest": (partition_manifest, "FORMAT_VERSION"),
}

COMMANDS = {
    "retain": ("retain",),
    "expire": ("expire",),
    "delete-records": ("delete-records", "orders", 0, "--before", 20),
    "delete-topic": ("delete-topic", "former"),
}


@contextmanager
def a_later_release(written: str) -> Iterator[None]:
    """Read and write objects in the formats of a later release."""
    module, *names = FORMATS[written]
    with ExitStack() as patched:
        for name in names:
            patched.enter_context(mock.patch.object(module, name, 9))
        yield


def a_site(root: Path, written: str, **properties: object) -> RemoteLogFiles:
    """Lay out two topics that a later release copied, and of which every command has something to delete."""
    files = a_remote_log(root, {("orders", 0): 3, ("former", 0): 2}, topics=TOPICS, **properties)
    with a_later_release(written), unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    if written == "partition manifest":
        assert len(list(files.store.rglob("state/*.json"))) == 2
    files.properties["topics"] = {**TOPICS, "former": {**DELETABLE, "remote.storage.enable": False}}
    return files


def kept(files: RemoteLogFiles) -> dict[Path, bytes]:
    """Return all that could be deleted, and the manifests that would record it."""
    places = (files.log_directory, files.store)
    return {
        path: path.read_bytes()
        for place in places
        for path in place.rglob("*")
        if path.is_file() and path.name not in {".lock", "store.json"} and not is_kept_by_the_store(path)
    }


def said(result: CommandResult) -> str:
    return result.out + result.err


@pytest.mark.parametrize(
    ("command", "verifies"),
    [*((command, True) for command in COMMANDS), ("retain", False)],  # only trimming asks whether to verify
)
@pytest.mark.parametrize("written", FORMATS)
def test_objects_of_a_later_release_are_kept_and_the_reason_is_reported(
    tmp_path: Path, written: str, command: str, verifies: bool
) -> None:
    files = a_site(tmp_path, written, remote_log_verify_before_trim=verifies)
    before = kept(files)

    result = run_on(files, *COMMANDS[command])

    assert kept(files) == before
    assert result.exit_code == 1
    assert mentions(said(result), "later release", "version 9 "), said(result)
    with files.open() as remote_log:
        assert {one.state for one in segments_of(remote_log)} == {SegmentState.COPY_SEGMENT_FINISHED}
        assert (remote_log.context.segments.log_start_offset(ORDERS_0) or 0) == 0


@pytest.mark.parametrize("written", FORMATS)
def test_a_topic_that_a_later_release_marked_stays(tmp_path: Path, written: str) -> None:
    files = a_site(tmp_path, written)
    with a_later_release(written):
        assert run_on(files, "delete-topic", "former").exit_code == 0
    before = kept(files)

    result = run_on(files, "expire", "--topics", "former")

    assert kept(files) == before
    assert result.exit_code == 1
    assert mentions(said(result), "later release", "version 9 ")


@pytest.mark.parametrize("written", FORMATS)
def test_a_deep_audit_and_a_repair_do_not_take_it_for_damage(tmp_path: Path, written: str) -> None:
    files = a_site(tmp_path, written)
    before = kept(files)

    audited = run_on(files, "audit", "--deep")
    repaired = run_on(files, "repair", "--deep")

    assert kept(files) == before
    assert audited.exit_code == 1
    assert mentions(said(audited), "later release", "version 9 ")
    assert "checksum" not in said(audited)
    assert "give up everything" not in said(repaired)
    with files.open() as remote_log:
        assert {one.state for one in segments_of(remote_log)} == {SegmentState.COPY_SEGMENT_FINISHED}


def test_a_quick_audit_reports_segments_of_a_later_release_as_unread_not_as_missing(tmp_path: Path) -> None:
    files = a_site(tmp_path, "manifest")
    for path in files.objects(".log"):
        path.unlink()

    with files.open() as remote_log:
        report = remote_log.checks.audit()
        plan = remote_log.repairs.plan(report, EVERYTHING)

    assert (report.anomalies, report.unread) == ((), 5)
    assert plan.is_empty


@pytest.mark.parametrize("written", FORMATS)
def test_copying_continues_and_a_rebuild_names_what_it_cannot_know(tmp_path: Path, written: str) -> None:
    files = a_site(tmp_path, written)
    files.append(2)

    assert run_on(files, "copy").exit_code == 0
    with files.open() as remote_log:
        assert len(segments_of(remote_log)) == 4

    rebuilt = run_on(files, "rebuild-metadata", "--into", tmp_path / "rebuilt.db", "--yes")

    assert rebuilt.exit_code == 1
    assert mentions(said(rebuilt), "later release", "version 9 ")
    assert "from a backup" not in said(rebuilt)


def test_a_bit_that_turned_in_a_version_is_damage_and_mended(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": ENABLED})
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    flip_bit(files.objects(".indexes")[0], 5)

    assert "checksum" in said(run_on(files, "audit", "--deep"))
    assert run_on(files, "repair", "--deep").exit_code == 0


def test_a_later_version_is_no_damage() -> None:
    error = LaterVersionError("store/some.indexes", 9, 1)

    assert "upgrade" in str(error)
    assert not error.retriable
