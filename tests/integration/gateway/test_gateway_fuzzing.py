"""Hostile clients of running gateways, always other ones: nothing of them stays.

GATEWAY_FUZZ_SECONDS says for how long each gateway is fuzzed at night, GATEWAY_FUZZ_SEED with which seed; the seed of a
run is printed.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from integration.gateway.hostile_clients import Visit, visit_together, visits
from integration.gateway.remote_topics import trimmed_in_every_codec
from integration.gateway.standalone_gateways import PLAIN, TOPIC_IDS, StandaloneSite, written_site
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, running_gateway
from support.kafka_clients import RealKafkaClient
from support.live_sites import LiveSite
from support.scraping import Scrape
from support.waiting import wait_for
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

NIGHT_SECONDS = int(os.environ.get("GATEWAY_FUZZ_SECONDS", "1120"))
"""With the share of tests/fuzz, the gateways are fuzzed for an hour."""
DAY_SECONDS = 45
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


BEFORE_A_BROKER = "fuzzed-gateway"
"""The topic of a gateway before a broker."""


@dataclass(frozen=True, slots=True)
class FuzzedGateway:
    """A gateway to fuzz by its `topic`, which has these records in partition 0; `login` is its clients'."""

    running: RunningGateway
    metrics_port: int
    topic: str
    topic_id: str
    records: list[Record]
    login: dict[str, str]

    def serves(self) -> bool:
        """Whether an ordinary client reads the whole topic."""
        client = RealKafkaClient(self.running.bootstrap_servers, self.login)
        return client.consume_all(self.topic) == self.records


def limits() -> dict[str, Any]:
    return {
        "gateway.metrics.port": free_first_port([0]),
        "gateway.memory.max.bytes": MEMORY_BYTES,
        "gateway.request.max.bytes": MEMORY_BYTES,
        "remote.log.reader.cache.memory.bytes": MEMORY_BYTES,
    }


@contextmanager
def without_brokers(root: Path, users: bool) -> Iterator[FuzzedGateway]:
    """Run a gateway on a log directory, for everybody or for `users` who log in."""
    properties = limits()
    site = written_site(root, properties)
    config = users_config(site) if users else site.config
    with running_gateway(config, site.port) as running:
        port, topic_id = properties["gateway.metrics.port"], TOPIC_IDS[PLAIN]
        yield FuzzedGateway(running, port, PLAIN, topic_id, site.records[PLAIN, 0], LOGIN if users else {})


def users_config(site: StandaloneSite) -> Path:
    """Write the settings file of a gateway whose users log in."""
    users, rights = site.root / "users.yaml", site.root / "rights.yaml"
    users.touch(0o600)
    users.write_text(yaml.safe_dump({USER: PASSWORD}))
    rights.write_text(yaml.safe_dump({"users": {USER: {"read": [PLAIN]}}}))
    files = {"gateway.users.file": str(users), "read.service.rights.file": str(rights)}
    return site.write_config("users-settings.yaml", {"log.dirs": [str(site.logs)], **files})


@contextmanager
def before_a_broker(root: Path, kafka: RealKafka) -> Iterator[FuzzedGateway]:
    """Run a gateway before a broker that has trimmed most of the topic."""
    properties = {"gateway.port": free_first_port([1]), **limits()}
    topic = f"{BEFORE_A_BROKER}-{secrets.token_hex(4)}"
    site = LiveSite(kafka, root, (topic,), properties)
    records = trimmed_in_every_codec(site, topic)
    with site.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
    with running_gateway(site.config, properties["gateway.port"]) as running:
        yield FuzzedGateway(running, properties["gateway.metrics.port"], topic, partition.topic_id, records, {})


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


def visit_for(seconds: float, fuzzed: FuzzedGateway, number: int, after_each: Callable[[], None]) -> int:
    """Let hostile clients come, those of the seed `number` first; call `after_each` seed, and return how many came."""
    end, came = time.monotonic() + seconds, 0

    @given(several=st.lists(visits(fuzzed.topic), min_size=1, max_size=MOST_AT_ONCE))
    @settings(database=None, derandomize=False, phases=[Phase.generate], max_examples=EXAMPLES, deadline=None)
    def some(several: list[Visit]) -> None:
        nonlocal came
        visit_together(fuzzed.running, several, decode_uuid(fuzzed.topic_id))
        came += len(several)

    while time.monotonic() < end:
        seed(number)(some)()
        after_each()
        number += 1
    return came


@pytest.fixture(params=["without brokers", "without brokers, for users", "before a broker"])
def fuzzed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FuzzedGateway]:
    if request.param == "before a broker":
        opened = before_a_broker(tmp_path, request.getfixturevalue("real_kafka"))
    else:
        opened = without_brokers(tmp_path, request.param.endswith("for users"))
    with opened as gateway:
        yield gateway


def fuzz(fuzzed: FuzzedGateway, seconds: int) -> None:
    number = int(os.environ.get("GATEWAY_FUZZ_SEED", "0")) or secrets.randbits(32)
    print(f"GATEWAY_FUZZ_SEED={number}")  # noqa: T201 - shown if the test fails
    gateway, used = fuzzed.running, list[int]()
    assert fuzzed.serves()
    before = memory(gateway)

    came = visit_for(seconds, fuzzed, number, lambda: used.append(memory(gateway)))

    wait_for(lambda: open_connections(gateway) == 0)
    wait_for(lambda: Scrape.get(fuzzed.metrics_port).value(CONNECTIONS) == 0)
    assert fuzzed.serves()
    with gateway.log.open() as log:
        unexpected = [line for line in log if not EXPECTED.match(line)]
    assert not unexpected, unexpected[:20]
    print(f"{came:,} connections, {before >> 20} MiB before, {max(used) >> 20} MiB at most")  # noqa: T201
    assert max(used) - before <= MOST_GROWTH


def test_hostile_clients_leave_nothing(fuzzed: FuzzedGateway) -> None:
    fuzz(fuzzed, DAY_SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(NIGHT_SECONDS + 300)
def test_hostile_clients_leave_nothing_in_a_long_time(fuzzed: FuzzedGateway) -> None:
    fuzz(fuzzed, NIGHT_SECONDS)
