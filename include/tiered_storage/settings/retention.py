"""Settings of retention and of all other deletions."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.properties.model import Contradiction, PropertyModel, Source, contradiction, setting
from tiered_storage.settings.properties.types import AS_THE_TOTAL, UNLIMITED, TotalRetention, Whole
from tiered_storage.settings.topics import LOCAL_MEANINGS, WITHOUT_LIMIT, refuse_more_than_total

RETENTION = "Retention"


class RetentionSettings(PropertyModel):
    """How long data stay, and what must hold before any are deleted."""

    log_retention_ms: TotalRetention = setting(
        "log.retention.ms", 604_800_000, RETENTION, Source.KAFKA, unit="ms", at_least=1, special=WITHOUT_LIMIT
    )
    """How long records live, in both tiers together, unless their topic says otherwise."""

    log_retention_bytes: TotalRetention = setting(
        "log.retention.bytes", UNLIMITED, RETENTION, Source.KAFKA, unit="bytes", at_least=1, special=WITHOUT_LIMIT
    )
    """How much a partition keeps, in both tiers together, unless its topic says otherwise."""

    log_local_retention_ms: Whole = setting(
        "log.local.retention.ms", AS_THE_TOTAL, RETENTION, Source.KAFKA, unit="ms", at_least=0, special=LOCAL_MEANINGS
    )
    """How long closed segments also stay local, once the remote tier has them; not more than log.retention.ms."""

    log_local_retention_bytes: Whole = setting(
        "log.local.retention.bytes",
        AS_THE_TOTAL,
        RETENTION,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LOCAL_MEANINGS,
    )
    """How much of a partition also stays local, once the remote tier has it; not more than log.retention.bytes."""

    remote_log_deletion_grace_ms: Whole = setting(
        "remote.log.deletion.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long the objects of a segment stay after it was marked for deletion: by expiry, delete-records, delete-topic
    or topics disable --delete-remote. Until then `tiered-storage undelete` brings it back. 0: nothing waits."""

    scheduled_deletion_enable: bool = setting("scheduled.deletion.enable", False, RETENTION, Source.OURS)
    """Whether runs that a schedule or an asset event started delete anything, in either tier. Without it such runs of
    enforce_local_retention and expire_remote_segments only plan; runs that a person triggers, and backfills, delete."""

    clock_max_skew_ms: Whole = setting("clock.max.skew.ms", 300_000, RETENTION, Source.OURS, unit="ms", at_least=1_000)
    """How far this machine's clock may be from the store's, from where the last run leaves it, and behind the times in
    the metadata. Where it is further, nothing is deleted, in either tier."""

    remote_log_orphan_grace_ms: Whole = setting(
        "remote.log.orphan.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long a copy that never finished stays before its objects are deleted, and an object that nothing refers to
    before the audit names it; not less than lease.duration.ms, so that no copy under way is touched."""

    remote_log_unreferenced_max_percent: Whole = setting(
        "remote.log.unreferenced.max.percent",
        1,
        RETENTION,
        Source.OURS,
        unit="percent",
        at_least=0,
        at_most=100,
    )
    """The share of the store's objects that nothing may refer to. Where an audit finds a larger one, and more than ten
    such objects, nothing is deleted: the metadata may be of another store, or older than this one."""

    remote_log_verify_before_trim: bool = setting("remote.log.verify.before.trim", True, RETENTION, Source.OURS)
    """Whether every remote byte is read back, its checksum compared, before the local segment goes that it was copied
    from. Without it objects are looked for, with their sizes and manifests: faster, and blind to a byte that rotted."""

    deletion_batch_segments: Whole = setting(
        "deletion.batch.segments", 500, RETENTION, Source.OURS, unit="segments", at_least=1, at_most=1000
    )
    """How many remote segments are deleted between two looks at whether deletions were stopped or forbidden."""

    @field_validator("log_local_retention_ms", "log_local_retention_bytes")
    @classmethod
    def _within_the_total(cls, local: int, info: ValidationInfo) -> int:
        total_field = str(info.field_name).replace("local_", "")
        if total_field in info.data:
            names = [str(name).replace("_", ".") for name in (info.field_name, total_field)]
            refuse_more_than_total(names[0], local, names[1], info.data[total_field])
        return local

    @field_validator("remote_log_orphan_grace_ms")
    @classmethod
    def _longer_than_a_lease(cls, grace: int, info: ValidationInfo) -> int:
        lease = info.data.get("lease_duration_ms", 0)
        if grace < lease:
            why = (
                f"remote.log.orphan.grace.ms is {grace}, less than lease.duration.ms, {lease}: "
                "objects of a copy that is under way would count as left behind"
            )
            raise contradiction(Contradiction(why, (("remote.log.orphan.grace.ms",), ("lease.duration.ms",))))
        return grace
