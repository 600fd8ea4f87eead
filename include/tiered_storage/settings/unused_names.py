"""Names of Kafka's tiered storage that have no effect here, so that a broker's settings can be taken over as they are.

Remote Log has no broker's threads and timers, since Airflow and Spark run its work, and no topic of metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SCHEDULE = "the schedule of the DAG in Airflow decides"
_RETRIES = "retries and retry_delay of the DAG decide"
_SPARK = "the cores of the Spark connection decide; the command has --workers"
_NO_FOLLOWER = "no followers read the remote tier"
_NO_TOPIC = "no Kafka topic has the metadata"
_RLMM = "rlmm.config.remote.log.metadata"

UNUSED_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "remote.log.index.file.cache.ttl.ms": "remote.log.index.file.cache.total.size.bytes alone decides",
        "remote.log.manager.thread.pool.size": _SPARK,
        "remote.log.manager.copier.thread.pool.size": _SPARK,
        "remote.log.manager.expiration.thread.pool.size": "one task of Airflow deletes in batches",
        "remote.log.manager.follower.thread.pool.size": _NO_FOLLOWER,
        "remote.log.manager.task.interval.ms": _SCHEDULE,
        "remote.log.manager.task.retry.backoff.ms": _RETRIES,
        "remote.log.manager.task.retry.backoff.max.ms": _RETRIES,
        "remote.log.manager.task.retry.jitter": _RETRIES,
        "remote.log.metadata.manager.listener.name": _NO_TOPIC,
        "follower.fetch.last.tiered.offset.enable": _NO_FOLLOWER,
        f"{_RLMM}.topic.replication.factor": _NO_TOPIC,
        f"{_RLMM}.topic.num.partitions": _NO_TOPIC,
        f"{_RLMM}.topic.retention.ms": _NO_TOPIC,
        f"{_RLMM}.topic.min.isr": _NO_TOPIC,
        f"{_RLMM}.consume.wait.ms": _NO_TOPIC,
        f"{_RLMM}.initialization.retry.max.timeout.ms": _NO_TOPIC,
        f"{_RLMM}.initialization.retry.interval.ms": _NO_TOPIC,
        f"{_RLMM}.common.client.": _NO_TOPIC,
        f"{_RLMM}.producer.": _NO_TOPIC,
        f"{_RLMM}.consumer.": _NO_TOPIC,
        f"{_RLMM}.admin.": _NO_TOPIC,
    }
)
"""Why each name has no effect. A name that ends in a dot is a prefix."""
