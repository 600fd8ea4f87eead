"""A remote log whose segments' metadata are in a topic, by the commands that users run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.tiering_kafka import tiering_kafka
from support.clocks import ManualClock
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.metadata_stores import topic_store
from support.records import varied_records
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.remote_log.source.partition_log import NamedPartition
from tiered_storage.settings.own_managers import KAFKAS_METADATA_MANAGER

OPTIONS = "rlmm.config.remote.log.metadata"
RECORDS = 400


def in_a_topic(name: str) -> dict[str, Any]:
    """Return the settings of a metadata topic called `name`."""
    return {
        "remote.log.metadata.manager.class.name": KAFKAS_METADATA_MANAGER,
        f"{OPTIONS}.topic.name": name,
        f"{OPTIONS}.topic.num.partitions": 5,
        f"{OPTIONS}.topic.replication.factor": 1,
        f"{OPTIONS}.topic.min.isr": 1,
    }


def produce(kafka: RealKafka, topic: str) -> None:
    kafka.client.produce(topic, varied_records(RECORDS, seed=1), batch_num_messages=20)


def verdicts(site: LiveSite) -> dict[str, str]:
    """Return the verdict of each of doctor's checks, the last one of each name."""
    return {row["check"]: row["verdict"] for row in site.run("doctor", "--json").rows}


def test_a_remote_log_moves_into_a_topic_works_there_and_moves_back(real_kafka: RealKafka, tmp_path: Path) -> None:
    topic = "moves-into-a-metadata-topic"
    real_kafka.client.create_topic(topic, config=SMALL_SEGMENTS | LONG)
    in_sql = LiveSite(real_kafka, tmp_path, (topic,))
    beside = replace(in_sql, settings=in_a_topic("metadata-of-commands"))
    produce(real_kafka, topic)
    first = in_sql.copied()
    assert first

    assert beside.run("plan").exit_code != 0, "the segments are still in SQL"
    [moved] = beside.run("metadata", "move", "topic", "--json").rows
    assert moved["segments"] == len(first)
    assert "metadata.manager.class.name" in in_sql.run("copy").err

    produce(real_kafka, topic)
    second = beside.copied()
    assert second
    listed = beside.run("segments", "--json").rows
    assert len(listed) == len(first) + len(second)
    beside.audited()
    status = beside.run("metadata", "status", "--json").document
    assert "metadata-of-commands" in status["where"]
    assert sum(row["end_offset"] for row in status["rows"]) == 2 * len(listed)
    assert [row["consumed"] for row in status["rows"]] == [row["end_offset"] for row in status["rows"]]
    [verified] = beside.run("metadata", "verify", "--json").rows
    assert (verified["segments"], verified["skipped_records"]) == (len(listed), 0)
    assert verdicts(beside)["metadata topic"] == "ok"

    assert beside.run("metadata", "move", "database").exit_code == 0
    assert in_sql.run("segments", "--json").rows == listed
    in_sql.audited()
    assert in_sql.copied() == []


def test_doctor_creates_no_metadata_topic(real_kafka: RealKafka, tmp_path: Path) -> None:
    topic, name = "examined-beside-a-metadata-topic", "metadata-of-doctor"
    real_kafka.client.create_topic(topic, config=SMALL_SEGMENTS | LONG)
    in_sql = LiveSite(real_kafka, tmp_path, (topic,))
    assert in_sql.run("topics", "enable", topic).exit_code == 0

    assert verdicts(replace(in_sql, settings=in_a_topic(name)))["metadata topic"] == "note"

    with ClusterClient.by_properties({"bootstrap.servers": real_kafka.bootstrap_servers}) as client:
        assert name not in {each for each, found in client.metadata().topics.items() if not found.error_code}


def test_the_own_topic_of_brokers_that_tier_is_refused(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    with tiering_kafka(kafka_programs, tmp_path / "broker") as kafka:
        changed = {"topic_name": "__remote_log_metadata"}
        with (
            topic_store(kafka.bootstrap_servers, tmp_path, ManualClock(), **changed) as store,
            pytest.raises(ConfigurationError, match=r"tier by themselves.*topic\.name"),
        ):
            store.segments.list_partitions()
        ours = {"topic_name": OUR_METADATA_TOPIC}
        with topic_store(kafka.bootstrap_servers, tmp_path, ManualClock(), **ours) as store:
            assert store.segments.list_partitions() == []
        with LiveSite(kafka, tmp_path, ()).open() as remote_log:
            named = [each for each in remote_log.context.source.names() if isinstance(each, NamedPartition)]
        internal = {each.topic_id_partition.topic for each in named if each.is_internal}
        assert OUR_METADATA_TOPIC in internal, "it must not be copied, and never be trimmed"
