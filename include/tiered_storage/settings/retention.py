"""Settings of retention and of all other deletions."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.properties.model import Contradiction, PropertyModel, Source, contradiction, setting
from tiered_storage.settings.properties.types import AS_THE_TOTAL, UNLIMITED, Names, OptionalText, TotalRetention, Whole
from tiered_storage.settings.topics import (
    LAG_MEANINGS,
    LOCAL_MEANINGS,
    WITHOUT_LIMIT,
    refuse_more_than_local,
    refuse_more_than_total,
)

RETENTION = "Retention"


class RetentionSettings(PropertyModel):
    """How long data stay, and what must hold before anything is deleted."""

    log_retention_ms: TotalRetention = setting(
        "log.retention.ms", 604_800_000, RETENTION, Source.KAFKA, unit="ms", at_least=1, special=WITHOUT_LIMIT
    )
    """The default of topics' retention.ms."""

    log_retention_bytes: TotalRetention = setting(
        "log.retention.bytes", UNLIMITED, RETENTION, Source.KAFKA, unit="bytes", at_least=1, special=WITHOUT_LIMIT
    )
    """The default of topics' retention.bytes."""

    log_local_retention_ms: Whole = setting(
        "log.local.retention.ms", AS_THE_TOTAL, RETENTION, Source.KAFKA, unit="ms", at_least=0, special=LOCAL_MEANINGS
    )
    """The default of local.retention.ms; at most log.retention.ms."""

    log_local_retention_bytes: Whole = setting(
        "log.local.retention.bytes",
        AS_THE_TOTAL,
        RETENTION,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LOCAL_MEANINGS,
    )
    """The default of local.retention.bytes; at most log.retention.bytes."""

    log_remote_copy_lag_ms: Whole = setting(
        "log.remote.copy.lag.ms", 0, RETENTION, Source.KAFKA, unit="ms", at_least=0, special=LAG_MEANINGS
    )
    """The default of remote.copy.lag.ms; at most log.local.retention.ms."""

    log_remote_copy_lag_bytes: Whole = setting(
        "log.remote.copy.lag.bytes",
        UNLIMITED,
        RETENTION,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LAG_MEANINGS,
    )
    """The default of remote.copy.lag.bytes; at most log.local.retention.bytes."""

    remote_log_deletion_grace_ms: Whole = setting(
        "remote.log.deletion.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long the objects of a segment stay after it was marked for deletion; until then `undelete` brings it back."""

    remote_log_replaced_topic_grace_ms: Whole = setting(
        "remote.log.replaced.topic.grace.ms", 604_800_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long remote data of an [earlier incarnation](live-cluster.md#which-topics) stay after `expire` first saw
    the new one."""

    scheduled_deletion_enable: bool = setting("scheduled.deletion.enable", False, RETENTION, Source.OURS)
    """Whether runs by a schedule or an asset event delete; if not, they only plan. Triggered runs and backfills delete
    either way."""

    clock_max_skew_ms: Whole = setting("clock.max.skew.ms", 300_000, RETENTION, Source.OURS, unit="ms", at_least=1_000)
    """The largest [difference between clocks](architecture.md#clocks). With more, nothing is deleted."""

    remote_log_lowered_limit_grace_ms: Whole = setting(
        "remote.log.lowered.limit.grace.ms", 604_800_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long deletions follow a topic's earlier limit after [its brokers lowered
    it](live-cluster.md#which-topics)."""

    remote_log_orphan_grace_ms: Whole = setting(
        "remote.log.orphan.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long an unfinished copy's objects stay, and how long audits ignore a new unreferenced object; at least
    lease.duration.ms."""

    remote_log_unreferenced_max_percent: Whole = setting(
        "remote.log.unreferenced.max.percent",
        1,
        RETENTION,
        Source.OURS,
        unit="percent",
        at_least=0,
        at_most=100,
    )
    """If an audit finds a larger share of unreferenced objects, and more than ten, nothing is deleted."""

    remote_log_verify_before_trim: bool = setting("remote.log.verify.before.trim", True, RETENTION, Source.OURS)
    """Whether to read back the remote copy before deleting a local segment; if not, only objects, sizes and manifests
    are checked."""

    local_retention_max_segments_per_run: Whole = setting(
        "local.retention.max.segments.per.run", 10_000, RETENTION, Source.OURS, unit="segments", at_least=1
    )
    """How many local segments one run deletes."""

    local_retention_ignored_groups: Names = setting(
        "local.retention.ignored.groups",
        (),
        RETENTION,
        Source.OURS,
        allowed="names of consumer groups: a list, or text with commas",
        default_text="none",
    )
    """Consumer groups that a running cluster's [local
    retention](live-cluster.md#delete-at-the-brokers-what-is-remote) does not wait for."""

    local_retention_topics_ignoring_groups: Names = setting(
        "local.retention.topics.ignoring.groups",
        (),
        RETENTION,
        Source.OURS,
        allowed="names of topics: a list, or text with commas",
        default_text="none",
    )
    """Topics whose local retention waits for no group."""

    deletion_batch_segments: Whole = setting(
        "deletion.batch.segments", 500, RETENTION, Source.OURS, unit="segments", at_least=1, at_most=1000
    )
    """After how many remote segments a deletion checks again whether it is still allowed."""

    remote_log_failed_deletions_topic: OptionalText = setting(
        "remote.log.failed.deletions.topic",
        None,
        RETENTION,
        Source.OURS,
        allowed="a topic's name",
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        default_text="none",
    )
    """The topic of the running cluster that gets [each failed
    deletion](operations.md#failed-deletions-as-records), such as `__delete_failed_remote_log_segments`."""

    @field_validator("log_local_retention_ms", "log_local_retention_bytes")
    @classmethod
    def _within_the_total(cls, local: int, info: ValidationInfo) -> int:
        total_field = str(info.field_name).replace("local_", "")
        if total_field in info.data:
            names = [str(name).replace("_", ".") for name in (info.field_name, total_field)]
            refuse_more_than_total(names[0], local, names[1], info.data[total_field])
        return local

    @field_validator("log_remote_copy_lag_ms", "log_remote_copy_lag_bytes")
    @classmethod
    def _within_local_retention(cls, lag: int, info: ValidationInfo) -> int:
        of_local = str(info.field_name).replace("remote_copy_lag", "local_retention")
        local, total = info.data.get(of_local), info.data.get(of_local.replace("local_", ""))
        if local is not None and total is not None:
            names = [each.replace("_", ".") for each in (str(info.field_name), of_local)]
            refuse_more_than_local(names[0], lag, names[1], total if local == AS_THE_TOTAL else local)
        return lag

    @field_validator("remote_log_orphan_grace_ms")
    @classmethod
    def _longer_than_a_lease(cls, grace: int, info: ValidationInfo) -> int:
        lease = info.data.get("lease_duration_ms", 0)
        if grace < lease:
            why = (
                f"remote.log.orphan.grace.ms is {grace}, less than lease.duration.ms, {lease}: "
                "objects of a copy that is under way would count as orphans; raise remote.log.orphan.grace.ms"
            )
            raise contradiction(Contradiction(why, (("remote.log.orphan.grace.ms",), ("lease.duration.ms",))))
        return grace
