"""A follower that is killed at any moment, by what it has on the disk then, and started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.remote_logs import ENABLED, ORDERS_0, a_copied_remote_log, assert_clean
from support.simulated_crashes import Died, dies_at_sync
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, read_leader_epochs
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.remote_log.follower.follower import Follower, follow
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

MOST_STEPS = 400


def _killed_at(led: LedPartition, step: int) -> bool:
    """Follow until the step of that number, from 0; return whether there was one."""
    with led.files.open() as remote_log, dies_at_sync(step):
        try:
            context = led.beside(remote_log).context
            with Follower.open(context, ORDERS_0, led.directory, leader=led) as follower:
                follow(follower)
        except Died:
            return True
    return False


@pytest.mark.parametrize("begin", range(4))
def test_a_killed_follower_starts_or_continues(tmp_path: Path, begin: int) -> None:
    """Every fourth moment: each run continues what the one before it left, killed one moment later."""
    kept = {"orders": ENABLED | {"local.retention.ms": 1}}
    led = LedPartition(a_copied_remote_log(tmp_path, topics=kept, remote_log_index_rotation_bytes=1))
    led.trim(before=10)

    for step in range(begin, MOST_STEPS, 4):
        if not _killed_at(led, step):
            break
        led.append(1)
    else:
        pytest.fail("the follower has more steps than that")

    report = led.follow()
    assert led.follower_content() == led.content(report.local_start_offset)
    assert report.indexed == 3
    epochs = read_leader_epochs(led.directory / "orders-0" / "leader-epoch-checkpoint")
    assert epochs == (EpochEntry(0, 0),)
    with led.as_local_log().open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("is_new", [True, False])
def test_no_clean_shutdown_mark_stands_while_a_log_is_written(tmp_path: Path, is_new: bool) -> None:
    led = LedPartition(a_copied_remote_log(tmp_path))
    led.follow()
    mark = led.directory / CLEAN_SHUTDOWN
    if is_new:
        shutil.rmtree(led.directory / "orders-0")
    assert mark.is_file()

    with led.follower():
        assert not mark.exists()

    assert mark.is_file()
