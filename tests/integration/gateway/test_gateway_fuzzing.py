"""Hostile clients of a running gateway for half an hour each, always other ones: nothing of them stays.

GATEWAY_FUZZ_SECONDS says for how long, GATEWAY_FUZZ_SEED with which seed; the seed of a run is printed.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from support.gateways import RunningGateway, running_gateway
from support.hostile_clients import Visit, visit_together, visits, wait_for
from support.kafka_clients import RealKafkaClient
from support.scraping import Scrape
from support.standalone_gateways import PLAIN, TOPIC_IDS, StandaloneSite, written_site
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

SECONDS = int(os.environ.get("GATEWAY_FUZZ_SECONDS", "1680"))
"""With the share of tests/fuzz, both gateways are fuzzed for an hour."""
EXAMPLES = 200
"""Of one seed."""
MOST_AT_ONCE = 4
MEMORY_BYTES = 16 << 20
MOST_GROWTH = 6 * MEMORY_BYTES
"""The memory of requests, of one that goes over it, the cache and what is read ahead; the rest is Python's own."""
CONNECTIONS = "remote_log_gateway_connections"
EXPECTED = re.compile(r"\S+ \S+ (INFO|WARNING) process 0 tiered_storage\S*: |the gateway serves ")
"""Lines of its log: one for each message, none of an error."""
USER, PASSWORD = "reader", "a password"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> StandaloneSite:
    properties = {
        "gateway.metrics.port": free_first_port([0]),
        "gateway.memory.max.bytes": MEMORY_BYTES,
        "gateway.request.max.bytes": MEMORY_BYTES,
        "remote.log.reader.cache.memory.bytes": MEMORY_BYTES,
    }
    return written_site(tmp_path_factory.mktemp("fuzzed-gateway"), properties)


def config(site: StandaloneSite, *, with_users: bool) -> Path:
    """Write the settings file of a gateway, whose users log in if it is `with_users`."""
    if not with_users:
        return site.config
    users, rights = site.root / "users.yaml", site.root / "rights.yaml"
    users.touch(0o600)
    users.write_text(yaml.safe_dump({USER: PASSWORD}))
    rights.write_text(yaml.safe_dump({"users": {USER: {"read": [PLAIN]}}}))
    files = {"gateway.users.file": str(users), "read.service.rights.file": str(rights)}
    return site.write_config("users-settings.yaml", {"log.dirs": [str(site.logs)], **files})


def memory(gateway: RunningGateway) -> int:
    """The bytes that the gateway's processes use."""
    return sum(int(each.memory_info().rss) for each in processes(gateway))


def open_connections(gateway: RunningGateway) -> int:
    """The connections of clients that the kernel knows of."""
    return sum(
        each.laddr.port == gateway.port and each.status != psutil.CONN_LISTEN
        for process in processes(gateway)
        for each in process.net_connections("tcp")
    )


def processes(gateway: RunningGateway) -> list[psutil.Process]:
    started = psutil.Process(gateway.process.pid)
    return [started, *started.children(recursive=True)]


def visit_for(seconds: float, gateway: RunningGateway, number: int, after_each: Callable[[], None]) -> int:
    """Let hostile clients come, those of the seed `number` first; call `after_each` seed, and return how many came."""
    end, came = time.monotonic() + seconds, 0

    @given(several=st.lists(visits(PLAIN), min_size=1, max_size=MOST_AT_ONCE))
    @settings(database=None, derandomize=False, phases=[Phase.generate], max_examples=EXAMPLES, deadline=None)
    def some(several: list[Visit]) -> None:
        nonlocal came
        visit_together(gateway, several, decode_uuid(TOPIC_IDS[PLAIN]))
        came += len(several)

    while time.monotonic() < end:
        seed(number)(some)()
        after_each()
        number += 1
    return came


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("with_users", [False, True], ids=["for everybody", "for users"])
def test_half_an_hour_of_hostile_clients_leaves_nothing(site: StandaloneSite, with_users: bool) -> None:
    number = int(os.environ.get("GATEWAY_FUZZ_SEED", "0")) or secrets.randbits(32)
    print(f"GATEWAY_FUZZ_SEED={number}")  # noqa: T201 - shown if the test fails
    used: list[int] = []
    with running_gateway(config(site, with_users=with_users), site.port) as gateway:
        client = RealKafkaClient(gateway.bootstrap_servers, LOGIN if with_users else {})
        assert client.consume_all(PLAIN) == site.records[PLAIN, 0]
        before = memory(gateway)

        came = visit_for(SECONDS, gateway, number, lambda: used.append(memory(gateway)))

        wait_for(lambda: open_connections(gateway) == 0)
        wait_for(lambda: Scrape.get(site.properties["gateway.metrics.port"]).value(CONNECTIONS) == 0)
        assert client.consume_all(PLAIN) == site.records[PLAIN, 0]
        with gateway.log.open() as log:
            unexpected = [line for line in log if not EXPECTED.match(line)]
    assert not unexpected, unexpected[:20]
    print(f"{came:,} connections, {before >> 20} MiB before, {max(used) >> 20} MiB at most")  # noqa: T201
    assert max(used) - before <= MOST_GROWTH
