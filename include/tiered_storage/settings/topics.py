"""The properties of one topic, and how they are resolved against the defaults of all topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import model_validator

from tiered_storage.settings.properties.model import (
    Contradiction,
    OlderName,
    PropertyModel,
    Source,
    contradiction,
    setting,
)
from tiered_storage.settings.properties.reading import Properties, Property, read_properties
from tiered_storage.settings.properties.types import AS_THE_TOTAL, UNLIMITED, CleanupPolicy, TotalRetention, Whole

TOPIC_GROUP = "Topics"
WITHOUT_LIMIT = {UNLIMITED: "no limit"}
LOCAL_MEANINGS = {UNLIMITED: "no limit", AS_THE_TOTAL: "as the total"}
LAG_MEANINGS = {UNLIMITED: "as local retention"}
AS_THE_BROKERS = {UNLIMITED: "as the brokers roll"}
DECISIONS = frozenset({"remote.storage.enable", "local.deletion.allowed", "remote.deletion.allowed"})
"""Decisions on a topic: the metadata store keeps them beside its properties, not among them."""


class TopicSettings(PropertyModel):
    """One topic's settings; those not set have Kafka's default until `over` resolves them."""

    noun: ClassVar[str] = "property of a topic"
    older_names: ClassVar[tuple[OlderName, ...]] = (
        OlderName("remote.log.storage.enable", "remote.storage.enable", source=Source.KIP_405_DRAFT),
        OlderName("remote.log.retention.minutes", "retention.ms", "minutes", 60_000, Source.KIP_405_DRAFT),
        OlderName("remote.log.retention.bytes", "retention.bytes", "bytes", source=Source.KIP_405_DRAFT),
        OlderName("deletion.allowed", "local.deletion.allowed", source=Source.OURS, stands_alone=True),
        OlderName("deletion.allowed", "remote.deletion.allowed", source=Source.OURS, stands_alone=True),
    )

    remote_storage_enable: bool = setting("remote.storage.enable", False, TOPIC_GROUP, Source.KAFKA)
    """Whether closed segments of the topic are copied."""

    remote_log_copy_disable: bool = setting("remote.log.copy.disable", False, TOPIC_GROUP, Source.KAFKA)
    """Whether copying is paused."""

    remote_log_delete_on_disable: bool = setting("remote.log.delete.on.disable", False, TOPIC_GROUP, Source.KAFKA)
    """Whether all remote data are deleted once `remote.storage.enable` is false. Requires `remote.deletion.allowed`."""

    local_deletion_allowed: bool = setting("local.deletion.allowed", False, TOPIC_GROUP, Source.OURS)
    """Whether local segments may be deleted once they are remote, by a running cluster's brokers too."""

    remote_deletion_allowed: bool = setting("remote.deletion.allowed", False, TOPIC_GROUP, Source.OURS)
    """Whether remote segments past total retention may be deleted."""

    cleanup_policy: CleanupPolicy = setting(
        "cleanup.policy", "delete", TOPIC_GROUP, Source.KAFKA, allowed="delete, compact, or compact,delete"
    )
    """The topic's policy in Kafka. A compacted topic cannot be tiered."""

    retention_ms: TotalRetention = setting(
        "retention.ms",
        604_800_000,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="ms",
        at_least=1,
        special=WITHOUT_LIMIT,
        default_text="log.retention.ms",
    )
    """How long both tiers together keep records, by the largest timestamp in their segment."""

    retention_bytes: TotalRetention = setting(
        "retention.bytes",
        UNLIMITED,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="bytes",
        at_least=1,
        special=WITHOUT_LIMIT,
        default_text="log.retention.bytes",
    )
    """How much both tiers together keep of a partition."""

    local_retention_ms: Whole = setting(
        "local.retention.ms",
        AS_THE_TOTAL,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="ms",
        at_least=0,
        special=LOCAL_MEANINGS,
        default_text="log.local.retention.ms",
    )
    """How long remote segments also stay local, by their largest timestamp; at most retention.ms."""

    local_retention_bytes: Whole = setting(
        "local.retention.bytes",
        AS_THE_TOTAL,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LOCAL_MEANINGS,
        default_text="log.local.retention.bytes",
    )
    """How much of a partition stays local after it is remote; at most retention.bytes."""

    remote_copy_lag_ms: Whole = setting(
        "remote.copy.lag.ms",
        0,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="ms",
        at_least=0,
        special=LAG_MEANINGS,
        default_text="log.remote.copy.lag.ms",
    )
    """How long a closed segment waits for its copy, from the largest timestamp in its time index on (KIP-1241), unless
    remote.copy.lag.bytes is reached first. At most local.retention.ms."""

    remote_copy_lag_bytes: Whole = setting(
        "remote.copy.lag.bytes",
        UNLIMITED,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LAG_MEANINGS,
        default_text="log.remote.copy.lag.bytes",
    )
    """How much of the local log must follow a closed segment before its copy; at most local.retention.bytes."""

    segment_bytes: Whole = setting(
        "segment.bytes",
        UNLIMITED,
        TOPIC_GROUP,
        Source.KAFKA,
        unit="bytes",
        at_least=1 << 20,
        at_most=(1 << 31) - 1,
        special=AS_THE_BROKERS,
    )
    """How large the segments are that a copy from a running cluster rolls. Closed ones of broker.log.dirs stay as they
    are."""

    segment_ms: Whole = setting(
        "segment.ms", UNLIMITED, TOPIC_GROUP, Source.KAFKA, unit="ms", at_least=1, special=AS_THE_BROKERS
    )
    """How long a copy from a running cluster waits before it copies less than a whole segment."""

    copy_over_gaps: bool = setting(
        "copy.over.gaps", False, TOPIC_GROUP, Source.OURS, default_text="copy.over.gaps of all topics"
    )
    """Whether copies continue after a gap: brokers deleted records too early."""

    remote_compression_enabled: bool = setting(
        "remote.compression.enabled", False, TOPIC_GROUP, Source.OURS, default_text="rsm.config.compression.enabled"
    )
    """Whether new segments are compressed by zstd."""

    remote_encryption_enabled: bool = setting(
        "remote.encryption.enabled", False, TOPIC_GROUP, Source.OURS, default_text="rsm.config.encryption.enabled"
    )
    """Whether new segments are encrypted."""

    replaced_since_ms: Whole = setting(
        "replaced.since.ms",
        UNLIMITED,
        TOPIC_GROUP,
        Source.OURS,
        unit="ms since 1970",
        at_least=0,
        special={UNLIMITED: "it is not"},
    )
    """Since when the cluster shows the topic's name with another topic id. `expire` writes it."""

    @model_validator(mode="after")
    def _local_within_the_total(self) -> Self:
        for limit in ("retention_ms", "retention_bytes"):
            local = f"local_{limit}"
            if {limit, local} <= self.model_fields_set:
                refuse_more_than_total(_dotted(local), getattr(self, local), _dotted(limit), getattr(self, limit))
            lag = limit.replace("retention", "remote_copy_lag")
            if {lag, local} <= self.model_fields_set:
                refuse_more_than_local(_dotted(lag), getattr(self, lag), _dotted(local), getattr(self, local))
        return self

    @classmethod
    def parse(cls, topic_name: str, properties: Mapping[str, str | int | bool]) -> Self:
        """Return the settings that `properties` give the topic; the others keep their defaults.

        Raises ConfigurationError with every property that is unknown, of the wrong type, or contradicts another.
        """
        where = f"topic {topic_name}"
        given = [Property((name,), value, where) for name, value in properties.items()]
        return read_properties(cls, [Properties(given)], place=where)

    @property
    def is_compacted(self) -> bool:
        """Whether Kafka compacts the topic."""
        return "compact" in self.cleanup_policy

    def properties(self) -> dict[str, str]:
        """Return the properties that were set, as text by Kafka's names, without the decisions."""
        given = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {name: _as_kafka_writes(value) for name, value in given.items() if name not in DECISIONS}

    def over(self, defaults: TopicSettings, topic_name: str) -> Self:
        """Return these settings with `defaults` for those not set, and what refers to another limit resolved.

        That is -2 (as the total) of local retention and -1 (as local retention) of a lag; a lag that is still -1 has no
        limit. Raises ConfigurationError if local retention exceeds total retention, or a lag exceeds local retention.
        """
        merged = {
            **defaults.model_dump(by_alias=True),
            **self.model_dump(by_alias=True, exclude_unset=True),
        }
        for limit in ("retention.ms", "retention.bytes"):
            if merged[f"local.{limit}"] == AS_THE_TOTAL:
                merged[f"local.{limit}"] = merged[limit]
            lag = limit.replace("retention", "remote.copy.lag")
            if merged[lag] == UNLIMITED:
                merged[lag] = merged[f"local.{limit}"]
        given = [Property((name,), value, f"topic {topic_name}, with the defaults") for name, value in merged.items()]
        resolved = read_properties(type(self), [Properties(given)], place=f"topic {topic_name}")
        return resolved.noted(self.notices)


def refuse_more_than_total(local_name: str, local: int, total_name: str, total: int) -> None:
    """Raise, inside a model's validation, if `local` exceeds `total` (-1: no limit; -2: as the total)."""
    if local == AS_THE_TOTAL or total == UNLIMITED or 0 <= local <= total:
        return
    shown = "without limit (-1)" if local == UNLIMITED else f"{local}"
    why = f"{local_name} is {shown}, more than {total_name}, {total}: what is local is part of the total"
    raise contradiction(Contradiction(why))


def refuse_more_than_local(lag_name: str, lag: int, local_name: str, local: int) -> None:
    """Raise, inside a model's validation, if the lag `lag` exceeds local retention (-1: no limit; -2: not resolved)."""
    if 0 <= local < lag:
        why = f"{lag_name} is {lag}, more than {local_name}, {local}: only copied segments are deleted locally"
        raise contradiction(Contradiction(why))


def _dotted(field_name: str) -> str:
    return field_name.replace("_", ".")


def _as_kafka_writes(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
