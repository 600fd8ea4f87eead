"""A gateway before the `site` of each module, whose first topic has records that are remote only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.gateway.remote_topics import trimmed_in_every_codec
from support.gateways import RunningGateway, running_gateway
from support.live_sites import LiveSite
from tiered_storage.kafka_log.records.record import Record


@pytest.fixture(scope="module")
def sent(site: LiveSite) -> list[Record]:
    """The records of the site's first topic, in every codec."""
    return trimmed_in_every_codec(site, site.topics[0])


@pytest.fixture(scope="module")
def gateway(site: LiveSite, sent: list[Record]) -> Iterator[RunningGateway]:
    """The gateway of the site, started after the records were sent."""
    with running_gateway(site.config, site.settings["gateway.port"]) as started:
        yield started
