"""Clients of all kinds read through a gateway while all fails, and commands copy, trim and expire."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.gateway_faults import read_beside_faults, site_of_readers
from integration.remote_servers import RemoteServers
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import CopyLoop


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_each_client_gets_each_record_once_whatever_fails(
    remote_servers: RemoteServers, kafka_programs: KafkaPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of_readers(remote_servers, tmp_path, monkeypatch)

    read_beside_faults(remote_servers, kafka_programs, site, CopyLoop(site, "retain", "expire"))
