"""The exporter takes no metrics for a scrape, keeps what it has, and listens on loopback only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.scraping import KAFKA, Scrape
from tiered_storage.errors import ConfigurationError, MetadataUnavailableError
from tiered_storage.remote_log.metrics.exporter import AGE_PER_SNAPSHOT, MetricsExporter, serve
from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from unit.built_metrics import many


def answers(*results: RemoteLogMetrics | Exception | None) -> Callable[[], RemoteLogMetrics | None]:
    remaining = iter(results)

    def take() -> RemoteLogMetrics | None:
        result = next(remaining)
        if isinstance(result, Exception):
            raise result
        return result

    return take


def scraped(exporter: MetricsExporter) -> Scrape:
    registry = CollectorRegistry()
    registry.register(exporter)
    return Scrape.of(generate_latest(registry).decode())


def test_before_the_first_look_there_are_no_metrics() -> None:
    assert scraped(MetricsExporter(answers(), 60, print)).names == {"remote_log_look_failed"}


def test_a_scrape_never_looks() -> None:
    exporter = MetricsExporter(answers(many(2)), 60, print)
    exporter.refresh()
    assert scraped(exporter) == scraped(exporter)


def test_looks_take_a_twentieth_of_the_time_at_most() -> None:
    quick, slow = many(1), RemoteLogMetrics(0, 9_000, ())
    exporter = MetricsExporter(answers(quick, slow), 60, print)
    assert exporter.refresh() == 60
    assert exporter.refresh() == 9 * AGE_PER_SNAPSHOT


def test_a_failed_look_is_shown_and_keeps_the_metrics_of_the_last_one() -> None:
    said: list[str] = []
    exporter = MetricsExporter(answers(many(2), MetadataUnavailableError("gone"), many(3)), 60, said.append)
    exporter.refresh()
    exporter.refresh()
    [message] = said
    assert "gone" in message
    failed = scraped(exporter)
    assert (failed.value("remote_log_look_failed"), failed.value("remote_log_partitions", topic="topic-1")) == (1, 1)
    exporter.refresh()
    assert scraped(exporter).value("remote_log_look_failed") == 0


def test_metrics_are_served_on_loopback_only_until_the_end() -> None:
    port = free_ports(1)[0]
    exporter = MetricsExporter(answers(many(20)), 60, print)
    exporter.refresh()
    end = serve(port, exporter, setting="--serve")
    try:
        assert Scrape.get(port).value(f"{KAFKA}remotecopylagsegments", topic="topic-1") == 1 + 11
        elsewhere = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
        for address in elsewhere - {"127.0.0.1"}:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((str(address), port), timeout=5)
    finally:
        end()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*read\.service"):
            serve(port, MetricsExporter(answers(), 60, print), setting="read.service.metrics.port")


def test_a_running_exporter_ends_at_once_when_it_is_told_to() -> None:
    stop = threading.Event()
    looked = threading.Event()

    def take() -> RemoteLogMetrics:
        looked.set()
        return many(1)

    thread = threading.Thread(target=MetricsExporter(take, 3600, print).run, args=(stop,))
    thread.start()
    assert looked.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
