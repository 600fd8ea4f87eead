"""Sources as the settings name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from support.remote_logs import a_remote_log
from support.topic_brokers import Answers
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.source.opening import open_source
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog
from tiered_storage.remote_log.source.segment_source import SegmentSource
from tiered_storage.settings.own_managers import KAFKAS_METADATA_MANAGER, METADATA_TOPIC_OPTION
from tiered_storage.settings.settings import Settings, load_settings

NAMED = MappingProxyType(
    {
        "remote.log.metadata.manager.class.name": KAFKAS_METADATA_MANAGER,
        f"rlmm.config.{METADATA_TOPIC_OPTION}": "own-metadata",
    }
)


def settings_with(folder: Path, properties: Mapping[str, object]) -> Settings:
    file = folder / "settings.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in properties.items()))
    return load_settings(file, environ={})


def internal_topics(source: SegmentSource) -> set[str]:
    """Return the internal topics, by the names and by the logs, which must agree."""
    names = {one.topic_id_partition.topic: one.is_internal for one in source.names() if isinstance(one, NamedPartition)}
    logs = {
        one.topic_id_partition.topic: one.is_internal for one in source.partitions() if isinstance(one, PartitionLog)
    }
    assert names == logs
    return {topic for topic, is_internal in logs.items() if is_internal}


def test_the_metadata_topic_in_log_directories_is_internal(tmp_path: Path) -> None:
    """Its records say where the copies are: a copy of them could be trimmed."""
    files = a_remote_log(tmp_path, {("own-metadata", 0): 0, (OUR_METADATA_TOPIC, 0): 0, ("orders", 0): 0})
    place = {"log.dirs": files.log_directory}

    assert internal_topics(open_source(settings_with(tmp_path, {**place, **NAMED}))) == {
        OUR_METADATA_TOPIC,
        "own-metadata",
    }
    assert internal_topics(open_source(settings_with(tmp_path, place))) == {OUR_METADATA_TOPIC}


@pytest.mark.parametrize("beside_disks", [False, True])
def test_the_metadata_topic_of_running_brokers_is_internal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, beside_disks: bool
) -> None:
    Answers(MetadataTopicId("cluster-1", "own-metadata", "topic-id-of-metadataAA", 1)).give(monkeypatch)
    (tmp_path / "disk").mkdir()
    place = {"bootstrap.servers": "127.0.0.1:1"} | (
        {"broker.log.dirs": f"1={tmp_path / 'disk'}"} if beside_disks else {}
    )

    assert internal_topics(open_source(settings_with(tmp_path, {**place, **NAMED}))) == {"own-metadata"}
    assert internal_topics(open_source(settings_with(tmp_path, place))) == set()
