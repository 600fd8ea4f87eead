"""A peek at records: some of them as text, as far as they are text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.html import of_partition, trail_to
from tiered_storage_airflow.page.partition_page import records_form
from tiered_storage_airflow.read_service.problem import title_of
from tiered_storage_airflow.read_service.tiers import ReadableRange

RECORDS = 20
MOST_BYTES = 16 << 20
"""So many bytes of batches are looked through for them, at most."""
MOST_HEADERS = 10
MOST_SHOWN = 300
"""So many characters of a key, a value or a header are shown."""


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as the page has it; all but the offset is HTML."""

    offset: int
    time: str
    key: str
    value: str
    headers: str


def shown_records(batch: pa.RecordBatch) -> list[ShownRecord]:
    """Return the records of a batch, with as much of them as is shown."""
    names = ("offset", "timestamp", "key", "value", "headers")
    offsets, times, keys, values, headers = (batch.column(batch.schema.get_field_index(name)) for name in names)
    return [
        ShownRecord(
            offsets[row].as_py(),
            escape(html.moment(times[row].value)),
            _shown(keys[row].as_py()),
            _shown(values[row].as_py()),
            "<br>".join(
                f"{escape(_printable(each['key'][:MOST_SHOWN]))}: {_shown(each['value'])}"
                for each in (headers[row].as_py() or ())[:MOST_HEADERS]
            ),
        )
        for row in range(batch.num_rows)
    ]


def records_page(
    root: str, partition: TopicIdPartition, readable: ReadableRange, records: Sequence[ShownRecord]
) -> str:
    """Return the page of `records`, the first of what is `readable`."""
    rows = [(html.number(each.offset), each.time, each.key, each.value, each.headers) for each in records]
    hidden = readable.view.hidden
    content = "" if hidden is None else html.alarms([html.local_tier_is_hidden(title_of(hidden))])
    content += records_form(root, partition, readable.start)
    content += html.table("Records", ("offset", "time", "key", "value", "headers"), rows, frozenset({0}))
    if records and records[-1].offset + 1 < readable.end:
        address = of_partition(root, partition, "/records", offset=records[-1].offset + 1)
        content += f"<p>{html.link(address, 'The next ones')}</p>"
    return html.page(root, f"{partition}: records from offset {readable.start:,} on", trail_to(partition), content)


def _shown(value: bytes | None) -> str:
    if value is None:
        return "<em>null</em>"
    try:
        text = value[: 4 * MOST_SHOWN].decode(errors="strict" if len(value) <= 4 * MOST_SHOWN else "ignore")
    except UnicodeDecodeError:
        text = value[:MOST_SHOWN].hex(" ")
    left = f" … ({len(value):,} bytes)" if len(text) > MOST_SHOWN or len(value) > 4 * MOST_SHOWN else ""
    return f"<code>{escape(_printable(text[:MOST_SHOWN]))}</code>{escape(left)}"


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(each if each.isprintable() else "·" for each in text)
