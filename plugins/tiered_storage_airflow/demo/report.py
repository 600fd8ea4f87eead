"""The demo's last words: what is where now, and how long each step took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage_airflow.demo.comparison import Compared
from tiered_storage_airflow.demo.expectation import ExpectedPartition


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition at the end: its ranges (inclusive), bytes, objects, and the records that were compared equal."""

    name: str
    expired: str
    remote: str
    local: str
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


def print_report(table_rows: Sequence[PartitionRow], seconds: Mapping[str, float], say_console: Console) -> None:
    """Print the partitions as one table, the steps as another."""
    table = Table(title="Every record compared", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("partition", "left"), ("expired", "right"), ("remote", "right"), ("local", "right"), ("remote bytes", "right"),
        ("local bytes", "right"), ("objects", "right"), ("equal before expiry", "right"), ("equal after", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in table_rows:
        table.add_row(
            row.name, row.expired, row.remote, row.local, f"{row.remote_bytes:,}", f"{row.local_bytes:,}",
            str(row.objects), f"{row.compared_before:,}", f"{row.compared_after:,}",
        )  # fmt: skip
    say_console.print(table)
    steps = Table(title="Steps", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    steps.add_column("step")
    steps.add_column("seconds", justify="right")
    for step, taken in seconds.items():
        steps.add_row(step, f"{taken:.1f}")
    steps.add_row("all", f"{sum(seconds.values()):.1f}")
    say_console.print(steps)


def _row(remote_log: RemoteLogManager, expected: ExpectedPartition, before: Compared, after: Compared) -> PartitionRow:
    partition = remote_log.find_partition(expected.topic, expected.partition)
    finished = [
        segment
        for segment in remote_log.segments.list_remote_log_segments(partition)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    ]
    local = remote_log.source.partition(partition)
    segments = local.segments if local else ()
    log_start = remote_log.segments.log_start_offset(partition) or 0
    return PartitionRow(
        name=str(expected),
        expired=f"0 to {log_start - 1}" if log_start else "none",
        remote=f"{finished[0].start_offset} to {finished[-1].end_offset}" if finished else "none",
        local=f"{local.log_start_offset} to {local.stable_offset - 1}" if local else "none",
        remote_bytes=sum(segment.size for segment in finished),
        local_bytes=sum(segment.size for segment in segments),
        objects=3 * len(finished),
        compared_before=before.records,
        compared_after=after.records,
    )
