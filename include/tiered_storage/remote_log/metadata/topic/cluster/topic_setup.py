"""Find the metadata topic on its cluster: create it, or check that it can hold metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from tiered_storage.errors import ConfigurationError, MetadataMissingError, MetadataUnavailableError
from tiered_storage.kafka_log.files.topic_partition import REMOTE_LOG_METADATA_TOPIC
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.metadata import ClusterMetadata, TopicMetadata
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import MetadataLog
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions, setting_name

_ANSWER_SECONDS: Final = 30
_TIERS_BY_ITSELF: Final = "remote.log.storage.system.enable"


def find_topic(options: TopicOptions, log: MetadataLog) -> MetadataTopicId | None:
    """Return the topic that the options name, checked; None if the cluster does not have it.

    Raises ConfigurationError for another number of partitions, a topic that is compacted or has a limited retention,
    and one that brokers tier into. Raises what `log` raises.
    """
    found = log.ask(f"metadata topic {options.name}", lambda client, seconds: _described(client, options.name, seconds))
    cluster, topic, configs = found
    if topic is None:
        return None
    if topic.topic_id is None or cluster.cluster_id is None:
        raise ConfigurationError(
            f"metadata topic {options.name}: the brokers at {options.servers} give no topic ids: Kafka 2.8 or later is "
            "needed"
        )
    if options.name == REMOTE_LOG_METADATA_TOPIC:
        _refuse_native(options, cluster.brokers)
    _check(options, topic, configs)
    return MetadataTopicId(cluster.cluster_id, options.name, topic.topic_id, len(topic.partitions))


def create_topic(options: TopicOptions, log: MetadataLog) -> MetadataTopicId:
    """Create the topic, unless another process does, and return it. Raises as `find_topic`."""
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 -- slow, and rarely needed
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    if options.name == REMOTE_LOG_METADATA_TOPIC:
        cluster = log.ask(
            "the cluster of the metadata topic", lambda client, seconds: client.metadata((), seconds=seconds)
        )
        _refuse_native(options, cluster.brokers)
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(options.retention_ms),
        "retention.bytes": "-1",
        "min.insync.replicas": str(options.min_isr),
    }
    wanted = NewTopic(
        options.name,
        num_partitions=options.partitions,
        replication_factor=options.replication_factor,
        config=config,
    )
    # Named: a client that nobody holds ends, and with it its requests.
    admin = _admin(options)
    try:
        created = admin.create_topics([wanted], request_timeout=_ANSWER_SECONDS)
        created[options.name].result(2 * _ANSWER_SECONDS)
    except KafkaException as error:
        code = error.args[0].code()
        if code != KafkaError.TOPIC_ALREADY_EXISTS:
            raise _not_created(options, error, is_retriable=error.args[0].retriable()) from error
    return _shown(options, log)


def ensure_empty(log: MetadataLog, topic: MetadataTopicId) -> None:
    """Raise ConfigurationError if the topic has, or had, records: other metadata."""
    for number, end in log.ends(topic, range(topic.partitions)).items():
        if end:
            raise ConfigurationError(
                f"metadata topic {topic.name}, partition {number}: has records already (its end is offset {end}), "
                f"which are not of these metadata: set {setting_name('name')} to a new topic"
            )


def ensure_same(options: TopicOptions, log: MetadataLog, known: MetadataTopicId) -> None:
    """Raise MetadataMissingError unless the topic is the one that has the segments; see `find_topic` for more."""
    found = find_topic(options, log)
    if found != known:
        there = "there is none" if found is None else f"there is {found}"
        raise MetadataMissingError(
            f"the segments are in metadata topic {known}, and at {options.servers} {there}: correct bootstrap.servers "
            f"and {setting_name('name')}, or restore the topic"
        )


def _described(
    client: ClusterClient, name: str, seconds: float
) -> tuple[ClusterMetadata, TopicMetadata | None, TopicConfigs | str]:
    cluster = client.metadata({name}, seconds=seconds)
    topic = cluster.topics.get(name)
    if topic is None or topic.error_code or not topic.partitions:
        return cluster, None, ""
    return cluster, topic, client.topic_configs([name], seconds=seconds)[name]


def _check(options: TopicOptions, topic: TopicMetadata, configs: TopicConfigs | str) -> None:
    where = f"metadata topic {topic.name}"
    if isinstance(configs, str):
        raise ConfigurationError(f"{where}: its settings are unknown: {configs}")
    if len(topic.partitions) != options.partitions:
        raise ConfigurationError(
            f"{where}: has {len(topic.partitions)} partitions, and {setting_name('partitions')} is "
            f"{options.partitions}: set that to {len(topic.partitions)}; never add partitions to a metadata topic"
        )
    if configs.is_compacted:
        raise ConfigurationError(
            f"{where}: is compacted (cleanup.policy), which deletes records that a segment's state is made of: set "
            f"{setting_name('name')} to another topic, or set cleanup.policy=delete before anything is written"
        )
    if configs.is_tiered_by_kafka:
        raise ConfigurationError(
            f"{where}: has remote.storage.enable, so its brokers move its own records away: set it to false"
        )
    if configs.retention_ms != options.retention_ms:
        raise ConfigurationError(
            f"{where}: has retention.ms {configs.retention_ms}, and {setting_name('retention_ms')} is "
            f"{options.retention_ms}: make them equal; metadata that expire are lost"
        )
    if configs.retention_bytes >= 0:
        raise ConfigurationError(
            f"{where}: has retention.bytes {configs.retention_bytes}, so its brokers delete the oldest metadata: set "
            "it to -1 for the topic, since the brokers' log.retention.bytes stands for it otherwise"
        )


def _refuse_native(options: TopicOptions, brokers: Iterable[int]) -> None:
    """Raise ConfigurationError if any of the brokers tiers by itself: then Kafka's own topic is theirs.

    All are asked: while they are restarted one after another with the setting, some do not tier yet.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = _admin(options)
    for broker in brokers:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        try:
            described = admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS)
            entries = described[resource].result(2 * _ANSWER_SECONDS)
        except KafkaException as error:
            raise _unavailable(options, error) from error
        found = entries.get(_TIERS_BY_ITSELF)
        if found is not None and str(found.value).lower() == "true":
            raise ConfigurationError(
                f"metadata topic {options.name}: the brokers at {options.servers} tier by themselves "
                f"({_TIERS_BY_ITSELF}), and write their own metadata there: set {setting_name('name')} to another topic"
            )


def _shown(options: TopicOptions, log: MetadataLog) -> MetadataTopicId:
    """Wait until the brokers show the topic that was created a moment ago."""
    ends = time.monotonic() + options.retry_timeout_ms / 1000
    while (found := find_topic(options, log)) is None:
        if time.monotonic() >= ends:
            raise MetadataUnavailableError(
                f"metadata topic {options.name}: was created, but the brokers at {options.servers} do not show it yet: "
                "try again"
            )
        time.sleep(options.retry_interval_ms / 1000)
    return found


def _admin(options: TopicOptions) -> Any:
    from confluent_kafka import KafkaException  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    try:
        return AdminClient({"log_level": 0, **options.client("admin")})
    except KafkaException as error:
        raise ConfigurationError(f"the admin client of metadata topic {options.name}: {error}: correct it") from error


def _not_created(options: TopicOptions, error: Exception, *, is_retriable: bool) -> Exception:
    if is_retriable:
        return _unavailable(options, error)
    return ConfigurationError(
        f"metadata topic {options.name}: the brokers at {options.servers} did not create it ({error}): correct "
        f"{setting_name('replication_factor')} ({options.replication_factor}) and {setting_name('partitions')} "
        f"({options.partitions}), or create the topic yourself"
    )


def _unavailable(options: TopicOptions, error: Exception) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"metadata topic {options.name}: the brokers at {options.servers} did not answer ({error}): try again"
    )
