"""Checks of a copy that the metadata may not know: its ids, its name, its bundle, and the size of its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log, flip_bit, segments_of
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.commit_marker import StoredCopy
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


def found(files: RemoteLogFiles, number: int = 1, **changed: Any) -> tuple[StoredCopy | None, RemoteLogSegmentMetadata]:
    """Return what is found of a segment, and its metadata as a finished one."""
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        finished = segments_of(remote_log)[number]
        begun = replace(finished, custom_metadata=None, max_timestamp=-1, **changed)
        return remote_log.context.storage.find_copy(begun), finished


@pytest.mark.parametrize("with_marker", [True, False])
def test_a_whole_stored_copy_is_recognised_with_and_without_its_marker(
    files: RemoteLogFiles, with_marker: bool
) -> None:
    if not with_marker:
        files.objects(".commit")[1].unlink()
    copy, finished = found(files)
    assert copy is not None
    stored = replace(copy.finished, event_timestamp=0, fencing_number=0)
    assert stored == replace(finished, event_timestamp=0, fencing_number=0)
    assert {kind.name for kind in copy.contents} >= {"OFFSET", "TIMESTAMP", "LEADER_EPOCH", "MANIFEST"}


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    flip_bit(path, path.stat().st_size // 2)


def take_the_first_ones(path: Path) -> None:
    path.write_bytes(min(path.parent.glob(f"*{path.suffix}")).read_bytes())


@pytest.mark.parametrize("change", [remove, cut])
def test_a_copy_without_all_of_its_data_is_not_recognised(
    files: RemoteLogFiles, change: Callable[[Path], None]
) -> None:
    change(files.objects(".log")[1])
    assert found(files)[0] is None


@pytest.mark.parametrize("with_marker", [True, False])
@pytest.mark.parametrize("change", [remove, cut, flip, take_the_first_ones])
def test_a_copy_with_a_wrong_bundle_is_not_recognised(
    files: RemoteLogFiles, change: Callable[[Path], None], with_marker: bool
) -> None:
    change(files.objects(".indexes")[1])
    if not with_marker:
        files.objects(".commit")[1].unlink()
    assert found(files)[0] is None


@pytest.mark.parametrize("change", [cut, take_the_first_ones])
def test_a_copy_with_a_wrong_marker_is_not_recognised(files: RemoteLogFiles, change: Callable[[Path], None]) -> None:
    change(files.objects(".commit")[1])
    assert found(files)[0] is None


def test_a_copy_under_another_base_offset_is_not_recognised(files: RemoteLogFiles) -> None:
    for suffix in (".log", ".indexes"):
        path = files.objects(suffix)[1]
        path.rename(path.with_name(path.name.replace(f"{10:020}", f"{12:020}")))
    files.objects(".commit")[1].unlink()
    assert found(files, start_offset=12)[0] is None
