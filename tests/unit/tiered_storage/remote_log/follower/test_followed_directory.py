from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

KEY = ("orders", 0)


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 35 records, whose follower has all of them."""
    led = LedPartition(a_copied_remote_log(tmp_path))
    led.follow()
    return led


@pytest.mark.parametrize(("start", "kept"), [(3, 3), (0, 0), (1000, 0)])
def test_records_that_a_broker_deleted_stay_deleted(led: LedPartition, start: int, kept: int) -> None:
    path = led.directory / LOG_START_OFFSET_CHECKPOINT
    write_offset_checkpoint(path, {KEY: start})
    led.append()

    assert led.follow().log_end_offset == 40

    assert read_offset_checkpoint(path) == {KEY: kept}


def test_a_log_without_its_topic_id_is_refused_and_the_id_is_named(led: LedPartition) -> None:
    path = led.directory / "orders-0" / PARTITION_METADATA
    content = path.read_text()
    path.unlink()

    with pytest.raises(InvalidLogDirectoryError) as refused:
        led.follow()

    assert content.splitlines()[-1] in str(refused.value)
    path.write_text(content)
    assert led.follow().starts == ()
