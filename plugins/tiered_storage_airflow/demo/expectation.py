"""What a partition must give back, record by record, told by something other than what the demo runs through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.kafka_log.batch_header import CONTROL_BIT
from tiered_storage.kafka_log.log_segment import list_segments
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.record_batch import read_records
from tiered_storage.kafka_log.segment_scan import iterate_segment, recover_valid_length


@dataclass(frozen=True, slots=True)
class ExpectedPartition:
    """A partition with all its records, offset by offset, made anew at each call of `records`."""

    topic: str
    partition: int
    records: Callable[[], Iterator[Record]]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def records_in(partition_directory: Path) -> Iterator[Record]:
    """Yield every record of a partition's local files, in order; control records are none."""
    for segment in list_segments(partition_directory):
        valid = recover_valid_length(segment.log_path, segment.base_offset)
        for window, table in iterate_segment(segment.log_path, segment.base_offset):
            for position, size, attributes in zip(
                table.position.tolist(), table.size.tolist(), table.attributes.tolist(), strict=True
            ):
                if position + size > valid:
                    return
                if attributes & CONTROL_BIT:
                    continue
                begin = position - int(table.position[0])
                yield from read_records(
                    window[begin : begin + size], source=str(segment.log_path), source_position=position
                )
