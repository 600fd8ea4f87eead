"""The demo's report: where each partition's records are now, and how long each step took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.listable_storage import listing_storage
from tiered_storage_airflow.demo.comparison import Compared
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets from `first` to `last`, both inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition at the end: its ranges, bytes, objects, and the records that were compared equal.

    `start_offset` is where its log began at first.
    """

    name: str
    start_offset: int
    expired: Offsets | None
    remote: Offsets | None
    local: Offsets | None
    remote_bytes: int
    local_bytes: int
    objects: int
    compared_before: int
    compared_after: int


def rows(
    remote_log: RemoteLogManager,
    partitions: Sequence[ExpectedPartition],
    before: Mapping[str, Compared],
    after: Mapping[str, Compared],
) -> list[PartitionRow]:
    """Return where each partition's offsets are now."""
    return [_row(remote_log, expected, before[str(expected)], after[str(expected)]) for expected in partitions]


def ensure_all_was_shown(table_rows: Sequence[PartitionRow]) -> None:
    """Raise DemoError unless something was trimmed, something expired, and something is remote only."""
    seen = {
        "was trimmed": any(row.local is None or row.local.first > row.start_offset for row in table_rows),
        "has expired": any(row.expired for row in table_rows),
        "is remote only": any(
            row.remote and (row.local is None or row.remote.first < row.local.first) for row in table_rows
        ),
    }
    for what, is_there in seen.items():
        if not is_there:
            raise DemoError(
                f"nothing {what} in any partition: the demo needs a partition with at least two closed segments"
            )


def print_report(table_rows: Sequence[PartitionRow], seconds: Mapping[str, float], console: Console) -> None:
    """Print the partitions as one table, the steps as another."""
    table = Table(title="Every record compared", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("partition", "left"), ("expired", "right"), ("remote", "right"), ("local", "right"), ("remote bytes", "right"),
        ("local bytes", "right"), ("objects", "right"), ("equal before expiry", "right"), ("equal after", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in table_rows:
        table.add_row(
            row.name, _shown(row.expired), _shown(row.remote), _shown(row.local),
            f"{row.remote_bytes:,}", f"{row.local_bytes:,}", str(row.objects),
            f"{row.compared_before:,}", f"{row.compared_after:,}",
        )  # fmt: skip
    console.print(table)
    steps = Table(title="Steps", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    steps.add_column("step")
    steps.add_column("seconds", justify="right")
    for step, taken in seconds.items():
        steps.add_row(step, f"{taken:.1f}")
    steps.add_row("all", f"{sum(seconds.values()):.1f}")
    console.print(steps)


def _row(remote_log: RemoteLogManager, expected: ExpectedPartition, before: Compared, after: Compared) -> PartitionRow:
    partition = remote_log.find_partition(expected.topic, expected.partition)
    finished = [
        segment
        for segment in remote_log.context.segments.list_remote_log_segments(partition)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    ]
    local = remote_log.context.source.partition(partition)
    segments = local.segments if local else ()
    expired = Offsets(before.start_offset, after.start_offset - 1)
    return PartitionRow(
        name=str(expected),
        start_offset=before.start_offset,
        expired=expired if expired.last >= expired.first else None,
        remote=Offsets(finished[0].start_offset, finished[-1].end_offset) if finished else None,
        local=Offsets(local.log_start_offset, local.last_stable_offset - 1) if local else None,
        remote_bytes=sum(segment.size for segment in finished),
        local_bytes=sum(segment.size for segment in segments),
        objects=_count_objects(remote_log, partition),
        compared_before=before.records,
        compared_after=after.records,
    )


def _count_objects(remote_log: RemoteLogManager, partition: TopicIdPartition) -> int:
    """Return how many objects the store itself shows of `partition`."""
    return sum(1 for _ in listing_storage(remote_log.context.storage).list_objects(partition_folder(partition)))


def _shown(offsets: Offsets | None) -> str:
    return "none" if offsets is None else str(offsets)
