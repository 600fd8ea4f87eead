"""No local segment is deleted before its remote copy was looked at, and by default read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.remote_logs import (
    BATCH_BYTES,
    NOW,
    SEGMENT_BYTES,
    a_copied_remote_log,
    batches_in,
    flip_bit,
    local_log,
    offsets_read,
    records,
    rewrite_segment,
    segments_of,
)
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, read_offset_checkpoint
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, RateLimit, ReportingLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.local import enforcement
from tiered_storage.remote_log.retention.local.enforcement import LocalRetentionReport
from tiered_storage.remote_log.retention.permission.object_checks import ensure_present
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.retention.local.local_plans import bases, keeping, retain


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
@pytest.mark.parametrize("which", [0, 1])
def test_nothing_local_is_deleted_if_an_object_is_missing(tmp_path: Path, suffix: str, which: int) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))
    missing = files.objects(suffix)[which]
    missing.unlink()

    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert missing.name in failure
    assert files.local_starts() == [0, 10, 20, 30]
    assert read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT) == {("orders", 0): 0}


def test_a_broken_manifest_is_no_proof(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        [first, *_] = segments_of(remote_log)
        ensure_present(first, remote_log.context.storage)

        path = files.objects(".indexes")[0]
        flip_bit(path, path.read_bytes().index(b"format_version"))
        with pytest.raises(RemoteObjectCorruptError):
            ensure_present(first, remote_log.context.storage)
        files.objects(".indexes")[0].unlink()
        with pytest.raises(RemoteObjectNotFoundError):
            ensure_present(first, remote_log.context.storage)


def test_one_partitions_failure_stops_no_other(tmp_path: Path) -> None:
    partitions = {("orders", 0): 1, ("orders", 1): 1}
    files = a_copied_remote_log(tmp_path, partitions, topics=keeping(0))
    files.objects(".log")[0].unlink()

    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert files.objects(".indexes")[0].stem in failure
    assert (files.local_starts(number=0), files.local_starts(number=1)) == ([0, 10], [10])


@pytest.mark.parametrize("verifies", [True, False])
def test_a_segment_that_is_not_what_was_copied_stays_with_all_of_its_partition(tmp_path: Path, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(BATCH_BYTES), remote_log_verify_before_trim=verifies)
    # As if a topic of the same id was created again: the same offsets and sizes, other records.
    path = files.local_segments()[1].log_path
    copied, second = batches_in(path)
    others = encode_batch([replace(each, value=(each.value or b"").swapcase()) for each in records(15, 20)])
    rewrite_segment(path, [copied, others])
    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert len(others) == len(second)
    assert f"{path.parent} is a fork" in failure
    crcs = [f"offsets 15 to 19 with CRC {batch[17:21].hex()}" for batch in (others, second)]
    assert [crc in failure for crc in crcs] == [True, True]
    assert files.local_starts() == [0, 10, 20, 30]


def test_a_trim_reads_remote_copies_back_within_the_limit_of_remote_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas: list[Quota] = []
    spent: list[int] = []

    def counted(quota: Quota) -> RateLimit:
        quotas.append(quota)
        return ReportingLimit(RateLimit(), spent.append)

    monkeypatch.setattr(throttle, "QuotaLimit", counted)
    files = a_copied_remote_log(
        tmp_path, topics=keeping(BATCH_BYTES), remote_log_manager_fetch_max_bytes_per_second=8 << 20
    )
    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert [each.bytes_per_second for each in quotas] == [8 << 20]
    assert sum(spent) == 3 * SEGMENT_BYTES


@pytest.mark.parametrize("verifies", [True, False])
def test_a_local_segment_that_rotted_stays(tmp_path: Path, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(BATCH_BYTES), remote_log_verify_before_trim=verifies)
    rotten = files.local_segments()[1].log_path
    flip_bit(rotten, SEGMENT_BYTES - 1)
    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert f"{rotten}: at byte {BATCH_BYTES}" in failure
    assert files.local_starts() == [0, 10, 20, 30]


@pytest.mark.parametrize(("verifies", "starts"), [(True, [0, 10, 20, 30]), (False, [30])])
def test_by_default_a_trim_reads_every_remote_byte_back(tmp_path: Path, verifies: bool, starts: list[int]) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0), remote_log_verify_before_trim=verifies)
    flip_bit(files.objects(".log")[1], 100)

    with files.open() as remote_log:
        failed = retain(remote_log)

    assert [("CRC-32C" in message) for message in failed] == [True] * verifies
    assert files.local_starts() == starts


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".commit"])
@pytest.mark.parametrize("verifies", [True, False])
def test_a_missing_or_shorter_object_keeps_what_it_must_hold(tmp_path: Path, suffix: str, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0), remote_log_verify_before_trim=verifies)
    path = files.objects(suffix)[1]
    os.truncate(path, path.stat().st_size - 1)
    with files.open() as remote_log:
        assert len(retain(remote_log)) == 1
        path.unlink()
        assert len(retain(remote_log)) == 1

    assert files.local_starts() == [0, 10, 20, 30]


def in_steps(remote_log: RemoteLogManager, step_bytes: int) -> LocalRetentionReport:
    """Enforce local retention in steps of so many bytes that are read back."""
    plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
    with mock.patch.object(enforcement, "STEP_BYTES", step_bytes):
        return remote_log.deletions.enforce_local_retention(plans)


def test_each_segment_is_trimmed_before_the_next_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    pieces, trim = ObjectRemoteStorageManager.verified, LogDirectoryTrim.trim

    def verified(self: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        seen.append(("looked at", segment.start_offset))
        yield from pieces(self, segment)

    def trimmed(self: LogDirectoryTrim, *given: Any) -> int:
        reached = trim(self, *given)
        seen.append(("begins at", reached))
        return reached

    monkeypatch.setattr(ObjectRemoteStorageManager, "verified", verified)
    monkeypatch.setattr(LogDirectoryTrim, "trim", trimmed)
    with a_copied_remote_log(tmp_path, topics=keeping(0)).open() as remote_log:
        report = in_steps(remote_log, SEGMENT_BYTES)

        assert seen == [
            (what, at) for base in (0, 10, 20) for what, at in (("looked at", base), ("begins at", base + 10))
        ]
        [plan] = report.trimmed
        assert (bases(plan), plan.new_local_start, report.failures) == ([0, 10, 20], 30, ())
        assert offsets_read(remote_log, 0) == list(range(35))


def test_if_a_later_step_fails_the_earlier_ones_are_done_and_reported(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    flip_bit(files.objects(".log")[2], 100)
    with files.open() as remote_log:
        report = in_steps(remote_log, 2 * SEGMENT_BYTES)

        [plan] = report.trimmed
        assert (bases(plan), plan.new_local_start) == ([0, 10], 20)
        assert "CRC-32C" in report.failures[0].message
        assert local_log(remote_log).log_start_offset == 20
