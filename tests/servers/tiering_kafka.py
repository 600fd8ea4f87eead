"""A real Kafka broker with tiered storage of its own (KIP-405), in a directory; see DirectoryRemoteStorage.java."""

from __future__ import annotations

from pathlib import Path

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka

SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
TIERED = {**SMALL_SEGMENTS, "remote.storage.enable": "true", "local.retention.bytes": "1"}
"""A topic's settings: it keeps no closed segment locally that is remote."""

_SOURCE = Path(__file__).parents[1] / "integration" / "DirectoryRemoteStorage.java"
_METADATA_MANAGER = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def tiering_kafka(programs: KafkaPrograms, root: Path) -> RealKafka:
    """Return a broker, not started, that keeps its log and its remote tier below `root`."""
    return RealKafka(
        programs.with_classes(_SOURCE, root / "classes"),
        root / "broker",
        properties={
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "DirectoryRemoteStorage",
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": str(root / "remote"),
            "remote.log.metadata.manager.class.name": _METADATA_MANAGER,
            "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "remote.log.manager.task.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
        },
    )
