"""What an interval has from an earlier export, against what another one would make of it.

The remote log expires and tables stay: an export must never take the place of one that has records which the remote log
has no more.
"""

from __future__ import annotations

from collections import Counter

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.layout import ExportManifest
from tiered_storage.remote_log.tables.planning import TablePlan


def ensure_all_partitions(earlier: ExportManifest, plan: TablePlan, place: str) -> None:
    """Raise ConfigurationError where the plan leaves a partition out of which there are files.

    Be it that it is not asked for, or that the remote log knows it no more.
    """
    planned = {each.topic_id_partition.partition for each in plan.partitions}
    left_out = sorted({file.partition for file in earlier.files} - planned)
    if left_out:
        raise ConfigurationError(
            f"{place} has records of partitions {', '.join(map(str, left_out))}, of which this export would have none, "
            "and they would go: name all partitions, or another place (export.url)"
        )


def why_kept(earlier: ExportManifest, plan: TablePlan) -> str | None:
    """Return which records the remote log has no more, so that the earlier export stays as it is; None: it has all."""
    starts = {each.topic_id_partition.partition: each.log_start_offset for each in plan.partitions}
    gone = sorted({file.partition for file in earlier.files if file.first_offset < starts.get(file.partition, 0)})
    if not gone:
        return None
    told = ", ".join(f"partition {partition} below offset {starts[partition]}" for partition in gone)
    return f"it has records that the remote log has no more: {told}"


def ensure_no_fewer(earlier: ExportManifest, later: ExportManifest, place: str) -> None:
    """Raise ConfigurationError where `later` has fewer rows of a partition than there are.

    Unless it leaves out what was aborted, and `earlier` did not: how much that is, neither of them tells.
    """
    if later.committed_only and not earlier.committed_only:
        return
    before, now = _rows(earlier), _rows(later)
    for partition, rows in sorted(before.items()):
        if now[partition] < rows:
            raise ConfigurationError(
                f"{place} has {rows} records of partition {partition}, and this export found {now[partition]}: nothing "
                f"was changed, so that none is lost; {_reason(earlier, later)}. Remove the folder to have it made anew"
            )


def _reason(earlier: ExportManifest, later: ExportManifest) -> str:
    if later.disorder_ms is not None and (earlier.disorder_ms is None or later.disorder_ms < earlier.disorder_ms):
        told = "any" if earlier.disorder_ms is None else f"{earlier.disorder_ms} ms"
        return f"it was exported with more disorder within a batch: {told}, and now {later.disorder_ms} ms"
    return "'tiered-storage audit --deep' tells what the remote log lacks"


def _rows(manifest: ExportManifest) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in manifest.files:
        rows[file.partition] += file.rows
    return rows
