from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log, flip_bit, ranges, segments_of
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.rebuild.stored_partitions import StoredPartition, stored_partitions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

TWO = {("clicks", 0): 1, ("orders", 0): 3}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, TWO)


def stored(files: RemoteLogFiles) -> dict[str, StoredPartition]:
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        return {str(found.topic_id_partition): found for found in stored_partitions(remote_log.context.storage)}


def test_whole_segments_are_known_as_they_were(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        known = segments_of(remote_log)
    found = stored(files)

    assert list(found) == ["clicks-0", "orders-0"] or list(found) == ["orders-0", "clicks-0"]
    orders = sorted(found["orders-0"].finished, key=lambda segment: segment.start_offset)
    # When a copy began is in its manifest; that it ended, and under which lease, is not.
    assert [replace(segment, event_timestamp=0, fencing_number=0) for segment in orders] == [
        replace(segment, event_timestamp=0, fencing_number=0) for segment in known
    ]
    assert (found["orders-0"].unfinished, found["orders-0"].unreadable) == ((), ())


def test_a_copy_without_a_marker_is_unfinished(files: RemoteLogFiles) -> None:
    next(path for path in files.objects(".commit") if "/orders-" in str(path)).unlink()
    left = files.objects(".log")[-1]
    left.with_name(f"{40:020}-{'A' * 22}.log.0123456789abcdef.tmp").write_bytes(b"half")
    found = stored(files)["orders-0"]

    assert ranges(sorted(found.finished, key=lambda segment: segment.start_offset)) == [(10, 19), (20, 29)]
    assert sorted(name.base_offset for name in found.unfinished) == [0, 40]


@pytest.mark.parametrize("suffix", [".indexes", ".commit"])
def test_a_segment_whose_manifest_cannot_be_trusted_is_reported_and_hides_no_other(
    files: RemoteLogFiles, suffix: str
) -> None:
    broken = [path for path in files.objects(suffix) if "/orders-" in str(path)][1]
    flip_bit(broken, broken.stat().st_size // 2)
    found = stored(files)["orders-0"]

    assert len(found.finished) == 2
    [finding] = found.unreadable
    assert finding.partition == "orders-0"
    assert mentions(finding.message, "offset 10 ", broken.stem.partition("-")[2])


def test_a_topic_id_of_two_names_is_refused_with_both(files: RemoteLogFiles) -> None:
    folder = next(path for path in files.store.glob("*/orders-*"))
    renamed = folder.with_name(folder.name.replace("orders-", "sales-"))
    (renamed / "1").mkdir(parents=True)
    (renamed / "1" / f"{0:020}-{'A' * 22}.log").write_bytes(b"")

    with pytest.raises(ConfigurationError, match=r"(orders.*sales|sales.*orders)"):
        stored(files)


def test_files_of_others_are_passed_over(files: RemoteLogFiles) -> None:
    folder = files.objects()[0].parent
    (folder / "holiday.jpg").write_bytes(b"jpg")
    (files.store / "holiday.jpg").write_bytes(b"jpg")

    assert sum(len(found.finished) for found in stored(files).values()) == 4
    assert ORDERS_0 in {found.topic_id_partition for found in stored(files).values()}
