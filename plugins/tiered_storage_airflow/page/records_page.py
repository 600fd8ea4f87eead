"""A preview of records, as text where they are text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage_airflow.page.base import local_tier_is_hidden, of_partition, page, records_form, trail_to
from tiered_storage_airflow.read_service.problem import title_of
from tiered_storage_airflow.read_service.tiers import ReadableRange

RECORDS = 20
MOST_BYTES = 16 << 20
"""How many bytes of batches at most are read for it."""
MOST_HEADERS = 10
MOST_SHOWN = 300
"""How many characters of a key, a value or a header are shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The beginning of a key or value as text; `left` is its full size (bytes) if it is longer, else 0."""

    text: str
    left: int = 0


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record on the page; `timestamp` in ms."""

    offset: int
    timestamp: int
    key: Shown | None
    value: Shown | None
    headers: Sequence[tuple[str, Shown | None]]


def shown_records(batch: pa.RecordBatch) -> list[ShownRecord]:
    """Return the shown parts of a batch's records."""
    names = ("offset", "timestamp", "key", "value", "headers")
    offsets, times, keys, values, headers = (batch.column(batch.schema.get_field_index(name)) for name in names)
    return [
        ShownRecord(
            offsets[row].as_py(),
            times[row].value,
            shown(keys[row].as_py()),
            shown(values[row].as_py()),
            [
                (_printable(each["key"][:MOST_SHOWN]), shown(each["value"]))
                for each in (headers[row].as_py() or ())[:MOST_HEADERS]
            ],
        )
        for row in range(batch.num_rows)
    ]


def records_page(
    root: str, partition: TopicIdPartition, readable: ReadableRange, records: Sequence[ShownRecord]
) -> str:
    """Return the page of `records`, the first of what is `readable`."""
    hidden, following = readable.snapshot.hidden, records[-1].offset + 1 if records else readable.end
    return page(
        "records.html",
        root,
        f"{partition}: records from offset {readable.start:,} on",
        trail_to(partition),
        alarms=[] if hidden is None else [local_tier_is_hidden(title_of(hidden))],
        records_form=records_form(root, partition, readable.start),
        records=records,
        more=of_partition(root, partition, "/records", offset=following) if following < readable.end else None,
    )


def shown(value: bytes | None) -> Shown | None:
    """Return the beginning of `value` as text, or in hex where it is not text; None for null."""
    if value is None:
        return None
    try:
        text = value[: 4 * MOST_SHOWN].decode(errors="strict" if len(value) <= 4 * MOST_SHOWN else "ignore")
    except UnicodeDecodeError:
        text = value[:MOST_SHOWN].hex(" ")
    is_cut = len(text) > MOST_SHOWN or len(value) > 4 * MOST_SHOWN
    return Shown(_printable(text[:MOST_SHOWN]), len(value) if is_cut else 0)


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(each if each.isprintable() else "·" for each in text)
