"""Topics whose whole segments are remote only, and reads of them."""

from __future__ import annotations

import time

from support.gateways import START_SECONDS, copied_and_trimmed
from support.kafka_clients import CODECS
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchedPartition, FetchLimits, FetchPosition


def trimmed_in_every_codec(site: LiveSite, topic: str, each: int = 300) -> list[Record]:
    """Create a topic with `each` records in every codec; those of whole segments are then remote only."""
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    records = [
        record
        for number, codec in enumerate(CODECS)
        for record in client.produce(topic, varied_records(each, seed=number), codec=codec, batch_num_messages=20)
    ]
    assert 0 < copied_and_trimmed(site, topic) < len(records)
    return records


def fetch_until_answered(
    client: ClusterClient, topic: str, offset: int, limits: FetchLimits | None = None
) -> FetchedPartition:
    """Fetch from partition 0 as a consumer does: again while there are neither records nor an error.

    That is the answer while the first remote bytes are on their way.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        answer = client.fetch(
            [FetchPosition(topic, 0, offset)], FetchBuffer(8 << 20), limits or FetchLimits(), seconds=START_SECONDS
        )
        [found] = answer.partitions
        if found.records or found.error_code or offset >= found.high_watermark:
            return found
        assert time.monotonic() < end, found
