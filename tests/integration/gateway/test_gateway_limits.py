"""What clients may do to a gateway of two processes: garbage, half frames, slow reads, too many connections."""

from __future__ import annotations

import signal
import socket
import struct
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.gateway.hostile_clients import HOSTILE, connected, is_closed_by_the_other_side, requests, send_anything
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.gateways import RunningGateway, copied_and_trimmed, running_gateway
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import USUAL_EXAMPLES, varied_records
from support.waiting import wait_for
from support.wires import framed
from tiered_storage.gateway.allowed_apis import (
    API_VERSIONS,
    FETCH,
)
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_request, request
from tiered_storage.kafka_wire.fetch import FetchLimits, FetchPosition, fetch_request
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC, LARGE = "gateway-limits", "gateway-limits-large"
MOST_CONNECTIONS = 20
LARGE_BYTES = 8 << 20
SMALL = 1 << 20
PIPELINED = 40
FETCHES = 'remote_log_gateway_requests_total{api="Fetch"}'


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    ports = {"gateway.port": free_first_port([1]), "gateway.metrics.port": free_first_port([0])}
    limits = {"gateway.workers": 2, "gateway.max.connections": MOST_CONNECTIONS}
    return LiveSite(real_kafka, tmp_path_factory.mktemp("gateway-limits"), (TOPIC,), {**ports, **limits})


@pytest.fixture(scope="module")
def sent(site: LiveSite) -> list[Record]:
    client = site.kafka.client
    client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG)
    records = client.produce(TOPIC, varied_records(400, seed=1), batch_num_messages=20)
    copied_and_trimmed(site, TOPIC)
    return records


@pytest.fixture(scope="module")
def topic_id(site: LiveSite, sent: list[Record]) -> bytes:
    return decode_uuid(site.kafka.client.topic_id(TOPIC))


def _answers(port: int) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/metrics").is_success
    return False


def metric(site: LiveSite, name: str) -> float:
    """The sum of a metric over both processes."""
    return sum(metric_of(site, name, number) for number in range(2))


def metric_of(site: LiveSite, name: str, number: int = 0) -> float:
    shown = httpx.get(f"http://127.0.0.1:{site.settings['gateway.metrics.port'] + number}/metrics").text
    return sum(float(line.split()[-1]) for line in shown.splitlines() if line.startswith(name))


def test_two_processes_serve_one_port(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    assert gateway.client.consume_all(TOPIC) == sent
    assert metric(site, "remote_log_gateway_remote_bytes_total") > 0
    assert metric(site, "kafka_server_brokertopicmetrics_remotefetchbytes_total") > 0


def test_a_process_that_is_killed_is_started_again(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    workers = [each for each in psutil.Process(gateway.process.pid).children() if "spawn_main" in str(each.cmdline())]
    assert len(workers) == 2

    min(workers, key=lambda each: each.pid).kill()

    assert gateway.client.consume_all(TOPIC) == sent
    wait_for(lambda: _answers(site.settings["gateway.metrics.port"]))
    assert mentions(gateway.log.read_text(), "process 0", "ended with -9")


@given(content=st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda body: framed(b"\0\x01" + body))))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_end_at_most_their_own_connection(gateway: RunningGateway, content: bytes) -> None:
    with connected(gateway) as opened:
        opened.sendall(content)


@given(
    frames=st.lists(requests(TOPIC), min_size=1, max_size=8),
    piece=st.sampled_from([1 << 20, 7, 1]),
    cut=st.sampled_from([0, 1, 40]),
    reads=st.booleans(),
)
@settings(max_examples=5 * USUAL_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_requests_end_at_most_their_own_connection(
    gateway: RunningGateway, topic_id: bytes, frames: list[bytes], piece: int, cut: int, reads: bool
) -> None:
    content = b"".join(frames)
    send_anything(gateway, content[: len(content) - cut], topic_id, piece, reads=reads)


def test_garbled_requests_have_left_nothing(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    wait_for(lambda: metric(site, "remote_log_gateway_connections ") == 0)

    assert "Traceback" not in gateway.log.read_text()
    assert gateway.client.consume_all(TOPIC) == sent


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_unserved_request_ends_its_connection(gateway: RunningGateway, content: bytes) -> None:
    with connected(gateway) as opened:
        opened.sendall(content)
        assert is_closed_by_the_other_side(opened)


def test_a_client_of_the_future_learns_which_version_to_ask_in(gateway: RunningGateway) -> None:
    with connected(gateway) as opened:
        opened.sendall(framed(struct.pack(">hhih", 18, 99, 7, -1) + b"\0"))
        size = int.from_bytes(_received(opened, 4), "big")
        answer = decode_answer(memoryview(_received(opened, size)), API_VERSIONS, 0, 7)

    assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, API_VERSIONS.latest)]


def test_connections_beyond_the_limit_are_closed_and_others_proceed(
    site: LiveSite, gateway: RunningGateway, sent: list[Record]
) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(connected(gateway)) for _ in range(2 * MOST_CONNECTIONS + 10)]
        wait_for(lambda: metric(site, "remote_log_gateway_refused_connections_total") >= 10)
        assert metric(site, "remote_log_gateway_connections ") <= 2 * MOST_CONNECTIONS
        assert clients
    wait_for(lambda: metric(site, "remote_log_gateway_connections ") == 0)

    assert gateway.client.consume_all(TOPIC) == sent


def test_a_client_that_does_not_read_takes_bounded_memory(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    topic_id = client.create_topic(LARGE, 1, {"max.message.bytes": "10000000"})
    big = [Record(number, 1_700_000_000_000, None, bytes(900_000)) for number in range(LARGE_BYTES // 900_000)]
    client.produce(LARGE, big, message_max_bytes=10_000_000)
    position = FetchPosition(LARGE, 0, 0, LARGE_BYTES, topic_id)
    asked = fetch_request(FETCH.latest, [position], FetchLimits(), "")
    workers = psutil.Process(gateway.process.pid).children(recursive=True)
    before, fetched = sum(each.memory_info().rss for each in workers), metric(site, FETCHES)

    with connected(gateway) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        opened.sendall(encode_request(request(API_VERSIONS, 0), 0, "slow"))
        for number in range(PIPELINED):
            opened.sendall(encode_request(asked, number + 1, "slow"))
        wait_for(lambda: metric(site, FETCHES) > fetched)
        after = sum(each.memory_info().rss for each in workers)
        # One Fetch is answered, and waits to be sent: the others have not gone to the broker.
        assert metric(site, FETCHES) == fetched + 1
        assert after - before < 6 * LARGE_BYTES < PIPELINED * LARGE_BYTES

        _received(opened, int.from_bytes(_received(opened, 4), "big"))
        for number in range(PIPELINED):
            size = int.from_bytes(_received(opened, 4), "big")
            assert int.from_bytes(_received(opened, size)[:4], "big") == number + 1


def _received(opened: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = opened.recv(min(size - len(content), 1 << 20))
        assert piece
        content += piece
    return bytes(content)


def ready(site: LiveSite, number: int = 0) -> dict[str, Any]:
    """The answer of /ready of a process."""
    answer = httpx.get(f"http://127.0.0.1:{site.settings['gateway.metrics.port'] + number}/ready")
    found: dict[str, Any] = answer.json()
    assert (answer.status_code == 200) == (found["status"] == "ready")
    return found


def test_both_processes_are_alive_and_ready(site: LiveSite, gateway: RunningGateway) -> None:
    wait_for(lambda: {ready(site, number)["status"] for number in range(2)} == {"ready"})
    for number in range(2):
        port = site.settings["gateway.metrics.port"] + number
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


def test_a_gateway_that_ends_is_not_ready_while_it_answers_its_clients(site: LiveSite, sent: list[Record]) -> None:
    ports = {"gateway.port": free_first_port([1]), "gateway.metrics.port": free_first_port([0])}
    alone = replace(site, settings={**site.settings, **ports, "gateway.workers": 1, "gateway.log.format": "json"})
    end = len(sent)
    waiting = FetchPosition(TOPIC, 0, end, SMALL, site.kafka.client.topic_id(TOPIC))
    with running_gateway(alone.config, ports["gateway.port"]) as gateway:
        wait_for(lambda: ready(alone)["status"] == "ready")
        with connected(gateway) as opened:
            # Answered once there is a record, or after twenty seconds.
            asked = fetch_request(FETCH.latest, [waiting], FetchLimits(max_wait_seconds=20), "")
            opened.sendall(encode_request(asked, 1, "waits"))
            wait_for(lambda: metric_of(alone, FETCHES) == 1)
            gateway.process.send_signal(signal.SIGTERM)
            wait_for(lambda: ready(alone)["status"] != "ready")
            assert ready(alone)["problems"].keys() == {"ports"}

            site.kafka.client.produce(TOPIC, [Record(0, 1_700_000_000_000, None, b"the last one")])
            size = int.from_bytes(_received(opened, 4), "big")
            assert int.from_bytes(_received(opened, size)[:4], "big") == 1
            assert is_closed_by_the_other_side(opened)
