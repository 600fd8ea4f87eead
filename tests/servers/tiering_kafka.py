"""A real Kafka broker with tiered storage of its own (KIP-405), in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from tiered_storage_airflow.demo_cluster.maven_jars import MavenJars, fetched_jars

SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
TIERED = {**SMALL_SEGMENTS, "remote.storage.enable": "true", "local.retention.bytes": "1"}
"""A topic's settings: it keeps no closed segment locally that is remote."""

_SOURCE = Path(__file__).parents[1] / "integration" / "DirectoryRemoteStorage.java"
_METADATA_MANAGER = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
_LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_LOCAL_TIERED_STORAGE_JAR = MavenJars("kafka_storage", "4.3.1", Path(__file__).parent)


def tiering_kafka(programs: KafkaPrograms, root: Path, properties: Mapping[str, str] | None = None) -> RealKafka:
    """Return a broker, not started, that keeps its log and its remote tier below `root`; it has `properties` besides.

    See DirectoryRemoteStorage.java.
    """
    return _tiering(programs.with_classes(_SOURCE, root / "classes"), root, "DirectoryRemoteStorage", properties)


def local_tiering_kafka(programs: KafkaPrograms, root: Path, state: Path) -> RealKafka:
    """Return a broker as tiering_kafka, with Kafka's own LocalTieredStorage; the jar of that is kept below `state`."""
    jars = fetched_jars(_LOCAL_TIERED_STORAGE_JAR, state)
    return _tiering(replace(programs, jars=(*programs.jars, *jars)), root, _LOCAL_TIERED_STORAGE)


def _tiering(
    programs: KafkaPrograms, root: Path, storage_class: str, properties: Mapping[str, str] | None = None
) -> RealKafka:
    return RealKafka(
        programs,
        root / "broker",
        properties={
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": storage_class,
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": str(root / "remote"),
            "remote.log.metadata.manager.class.name": _METADATA_MANAGER,
            "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "remote.log.manager.task.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
            **(properties or {}),
        },
    )
