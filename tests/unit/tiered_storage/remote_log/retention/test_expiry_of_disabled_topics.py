"""What is remote of a disabled topic is deleted where somebody asked for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.plain_reader import PlainReader
from support.remote_logs import ENABLED, NOW, ORDERS_0, a_copied_remote_log, offsets_read, segments_of
from tiered_storage.remote_log.retention.expiry import Reason
from tiered_storage.remote_log.selection import EVERYTHING
from unit.tiered_storage.remote_log.retention.expiries import expire, going


def test_only_the_requested_deletion_is_done_for_a_disabled_topic(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path)
    files.properties["topics"] = {"orders": asked}
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert (going(plan), plan.new_log_start) == ([0, 10], 0)
        remote_log.deletions.mark_expired([plan], "expire")
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 2
        [rest], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert going(rest) == [20]


def test_everything_that_is_remote_of_a_disabled_topic_is_deleted_where_that_is_asked_for(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path, topics={"orders": asked})
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert (plan.reason, plan.new_log_start, len(plan.segments)) == (Reason.DISABLED, 0, 3)
        assert len(expire(remote_log).deleted) == 3

        assert files.objects() == []
        assert offsets_read(remote_log, 0) == list(range(35)), "what is local stays"
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


@pytest.mark.parametrize(
    "changed",
    [
        {"remote.storage.enable": True},
        {"remote.log.delete.on.disable": False},
        {"remote.deletion.allowed": False},
        {"remote.storage.enable": True, "remote.log.copy.disable": True},
    ],
    ids=["enabled", "not asked for", "not allowed", "paused"],
)
def test_remote_segments_stay_unless_the_topic_is_disabled_and_deletion_asked_for_and_allowed(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True, **changed}
    with a_copied_remote_log(tmp_path, topics={"orders": asked}).open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


def test_a_topic_that_was_enabled_again_since_the_plan_keeps_what_is_remote(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path, topics={"orders": asked})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=True))

        assert remote_log.deletions.mark_expired(plans, "expire") == ((), ())
        assert len(segments_of(remote_log)) == 3


@pytest.mark.parametrize("unseen", ["no log.dirs", "not in log.dirs"])
def test_a_topic_disabled_out_of_sight_of_its_local_log_keeps_its_log_start(tmp_path: Path, unseen: str) -> None:
    gone = {"orders": {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}}
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("other", 0): 1}, topics=gone)
    if unseen == "no log.dirs":
        files.properties["log.dirs"] = []
    else:
        files.partition_directory().rename(tmp_path / "elsewhere")
    with files.open() as remote_log:
        assert len(expire(remote_log).deleted) == 3
    if unseen == "no log.dirs":
        del files.properties["log.dirs"]
    else:
        (tmp_path / "elsewhere").rename(files.partition_directory())
    files.properties["topics"] = {"orders": {**ENABLED, "local.retention.bytes": 0}}

    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 0
        assert [segment.base_offset for segment in remote_log.plan_copy().segments] == [0, 10, 20]
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
        assert offsets_read(remote_log, 0) == list(range(35))
