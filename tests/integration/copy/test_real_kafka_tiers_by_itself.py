"""A broker with tiered storage of its own (KIP-405): the topics that it tiers are refused, its other topics are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.tiering_kafka import SMALL_SEGMENTS, TIERED, tiering_kafka
from support.command_line import mentions, run_on
from support.records import varied_records
from support.remote_logs import ENABLED, RemoteLogFiles
from support.waiting import wait_for
from tiered_storage.kafka_log.files.log_segment import list_segments

WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def left(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory that a broker left: `tiered` began in its own remote tier, `plain` it never tiered."""
    root = tmp_path_factory.mktemp("tiering")
    with tiering_kafka(kafka_programs, root) as kafka:
        for topic, config in (("tiered", TIERED), ("plain", SMALL_SEGMENTS)):
            kafka.client.create_topic(topic, 1, config)
            kafka.client.produce(topic, varied_records(3_000, seed=1), batch_num_messages=50)
        kafka.client.delete_records("plain", 0, 1_000)
        wait_for(
            lambda: list_segments(kafka.log_dir / "tiered-0")[0].base_offset > 0,
            lambda: "the broker did not tier",
            WAIT_SECONDS,
        )
    return kafka.log_dir


def test_the_topic_that_it_tiers_is_refused_and_the_other_is_copied(left: Path, tmp_path: Path) -> None:
    first = list_segments(left / "tiered-0")[0].base_offset
    files = RemoteLogFiles(
        tmp_path, properties={"log.dirs": [str(left)], "topics": {"tiered": ENABLED, "plain": ENABLED}}
    )

    planned = run_on(files, "plan")
    copied = run_on(files, "copy")

    for ended in (planned, copied):
        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, "tiers tiered-0: ", f"offset is {first}", "offset 0 ")
        assert "tiers plain-0" not in said
    stored = {path.parent.parent.name.rpartition("-")[0][:5] for path in files.objects(".log")}
    assert stored == {"plain"}


def test_without_its_checkpoint_nothing_is_taken_for_the_beginning(left: Path, tmp_path: Path) -> None:
    (left / "log-start-offset-checkpoint").rename(tmp_path / "kept")
    files = RemoteLogFiles(tmp_path, properties={"log.dirs": [str(left)], "topics": {"tiered": ENABLED}})
    try:
        planned = run_on(files, "plan")
    finally:
        (tmp_path / "kept").rename(left / "log-start-offset-checkpoint")

    said = " ".join((planned.out + planned.err).split())
    assert planned.exit_code == 1
    assert "may tier tiered-0" in said
