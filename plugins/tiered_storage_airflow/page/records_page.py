"""A peek at records: some of them as text, as far as they are text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from tiered_storage.kafka_log.record import Record
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.partition_page import path_of

RECORDS = 20
MOST_SHOWN = 300
"""So many characters of a key, a value or a header are shown."""


def records_page(root: str, partition: TopicIdPartition, offset: int, records: Sequence[Record], end: int) -> str:
    """Return the page of `records`, which begin with `offset`; `end` is the log's."""
    path = root + path_of(partition)
    rows = [
        (
            html.number(record.offset),
            escape(html.moment(record.timestamp)),
            _shown(record.key),
            _shown(record.value),
            "<br>".join(f"{escape(name[:MOST_SHOWN])}: {_shown(value)}" for name, value in record.headers[:10]),
        )
        for record in records
    ]
    following = ""
    if records and records[-1].offset + 1 < end:
        address = f"{path}/records?offset={records[-1].offset + 1}"
        following = f"<p>{html.link(address, 'The next ones')}</p>"
    form = (
        f'<form action="{escape(path)}/records"><label>offset<input name="offset" type="number" min="0" '
        f'value="{offset}"></label><button>Look</button></form>'
    )
    shown = html.table("Records", ("offset", "time", "key", "value", "headers"), rows, frozenset({0}))
    trail = [(partition.topic, f"/topics/{quote(partition.topic, safe='')}"), (str(partition), path_of(partition))]
    return html.page(root, f"{partition}: records from offset {offset:,} on", trail, form + shown + following)


def _shown(value: bytes | None) -> str:
    if value is None:
        return "<em>null</em>"
    try:
        text = value[: 4 * MOST_SHOWN].decode(errors="strict" if len(value) <= 4 * MOST_SHOWN else "ignore")
    except UnicodeDecodeError:
        text = value[:MOST_SHOWN].hex(" ")
    if not text.isprintable():
        text = "".join(each if each.isprintable() else "·" for each in text)
    left = f" … ({len(value):,} bytes)" if len(text) > MOST_SHOWN or len(value) > 4 * MOST_SHOWN else ""
    return f"<code>{escape(text[:MOST_SHOWN])}</code>{escape(left)}"
