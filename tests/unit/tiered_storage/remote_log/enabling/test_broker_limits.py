"""Limits that brokers lowered: which value counts, who is alarmed, and which are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.enabling.broker_limits import (
    Origin,
    lowered_findings,
    lowered_limits,
    note_shown,
    origins,
)
from tiered_storage.remote_log.metadata.held_limits import HeldLimits, held_limits
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.tiering_policy import TieringPolicy, effective
from tiered_storage.settings.settings import Settings, load_settings

DAY = 86_400_000
BEFORE = {"retention.ms": 30 * DAY, "retention.bytes": -1, "local.retention.ms": 5 * DAY}
NOW = TopicConfigs.of({"retention.ms": str(3 * DAY), "retention.bytes": "1000000", "local.retention.ms": str(DAY)})
HELD = HeldLimits().seen(BEFORE, 0, DAY).seen(NOW.limits, DAY, DAY)
BOTH = Topic("cluster", "id", "orders", True, True, True)


def settings(root: Path, text: str = "") -> Settings:
    path = root / "settings.yaml"
    path.write_text(f"bootstrap.servers: kafka:9092\n{text}")
    return load_settings(path, environ={})


def lowered(root: Path, topic: Topic, text: str = "") -> list[str]:
    found = settings(root, text)
    return lowered_limits(TieringPolicy(topic, effective(topic, found, NOW, HELD), held=HELD), found, NOW)


def test_deletions_use_the_earlier_limits_until_the_grace_time_ends(tmp_path: Path) -> None:
    found = effective(BOTH, settings(tmp_path), NOW, HELD)
    assert (found.retention_ms, found.retention_bytes, found.local_retention_ms) == (30 * DAY, -1, 5 * DAY)
    after = HELD.seen(NOW.limits, 2 * DAY, DAY)
    found = effective(BOTH, settings(tmp_path), NOW, after)
    assert (found.retention_ms, found.retention_bytes, found.local_retention_ms) == (3 * DAY, 1_000_000, DAY)


def test_settings_without_the_cluster_expire_nothing_by_a_default_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "follower.yaml"
    path.write_text("log.dirs: /data/follower\nlog.retention.bytes: 7\n")
    over_a_directory = load_settings(path, environ={})

    found = effective(BOTH, over_a_directory, None, HELD)

    assert (found.retention_ms, found.local_retention_ms, found.retention_bytes) == (-1, -1, 7)
    assert origins(BOTH, over_a_directory, None, HELD)["retention.ms"] is Origin.UNKNOWN
    assert effective(BOTH, over_a_directory).retention_ms == 7 * DAY


@pytest.mark.parametrize(
    ("topic", "text", "names"),
    [
        (BOTH, "", {"retention.ms", "retention.bytes", "local.retention.ms"}),
        (Topic("cluster", "id", "orders", True, True, False), "", {"local.retention.ms"}),
        (Topic("cluster", "id", "orders", True, False, True), "", {"retention.ms", "retention.bytes"}),
        (Topic("cluster", "id", "orders", True), "", set()),
        (BOTH, f"log.retention.ms: {9 * DAY}", {"retention.bytes", "local.retention.ms"}),
        (Topic("cluster", "id", "orders", True, True, True, {"retention.bytes": "7"}), "",
         {"retention.ms", "local.retention.ms"}),
        (BOTH, "remote.log.lowered.limit.grace.ms: 0", set()),
    ],
)  # fmt: skip
def test_only_lowered_limits_that_decide_deletions_are_named(
    topic: Topic, text: str, names: set[str], tmp_path: Path
) -> None:
    assert set(lowered(tmp_path, topic, text)) == names


def test_our_segments_count_only_for_what_fetch_copies_beside_the_brokers_disks(tmp_path: Path) -> None:
    topic = Topic("cluster", "id", "orders", True, properties={"segment.ms": "60000"})
    for text, ours in (("", Origin.TOPIC), ("broker.log.dirs: 1=/data/a", Origin.TOPIC_BY_FETCH)):
        found = origins(topic, settings(tmp_path, text), NOW)
        assert (found["segment.ms"], found["segment.bytes"]) == (ours, Origin.BROKERS_DEFAULT)


def test_without_a_grace_time_the_present_limits_hold(tmp_path: Path) -> None:
    found = settings(tmp_path, "remote.log.lowered.limit.grace.ms: 0")
    assert effective(BOTH, found, NOW, HELD).retention_ms == 3 * DAY
    assert origins(BOTH, found, NOW, HELD)["retention.ms"] is Origin.BROKERS_DEFAULT
    assert origins(BOTH, settings(tmp_path), NOW, HELD)["retention.ms"] is Origin.HELD


def test_a_lowered_limit_is_reported_with_both_values_its_deadline_and_the_remedy(tmp_path: Path) -> None:
    found = settings(tmp_path, f"remote.log.lowered.limit.grace.ms: {DAY}")
    said = {
        each.message for each in lowered_findings(TieringPolicy(BOTH, effective(BOTH, found), held=HELD), found, NOW)
    }
    [retention] = [each for each in said if "retention.ms from 2592000000 to 259200000:" in each]
    for word in ("after 1970-01-03", "restore it at the brokers", "topics set orders retention.ms=259200000"):
        assert word in retention


def test_a_grace_time_neither_begins_nor_ends_by_a_wrong_clock(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    begun = files.clock()

    def wrong() -> None:
        raise DeletionRefusedError("the clock is ahead")

    def note(limit: int, *, is_right: bool) -> HeldLimits:
        with files.open() as remote_log:
            note_shown(
                remote_log.context, {("cluster", "id"): {"retention.ms": limit}}, (lambda: None) if is_right else wrong
            )
            return held_limits("cluster", "id", remote_log.context.store.topics)

    assert note(30 * DAY, is_right=False).counted == {"retention.ms": 30 * DAY}
    with pytest.raises(DeletionRefusedError):
        note(3 * DAY, is_right=False)
    assert note(3 * DAY, is_right=True).lowered["retention.ms"].since == begun
    files.clock.now = begun + 8 * DAY
    with pytest.raises(DeletionRefusedError):
        note(3 * DAY, is_right=False)
    files.clock.now = begun + DAY
    assert note(3 * DAY, is_right=True).counted == {"retention.ms": 30 * DAY}
