"""The API server's endpoint for Prometheus: kept metrics, and what it fetched, without a login, on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from support.read_service_site import ReadServiceSite, prepare_logins
from support.remote_logs import a_copied_remote_log
from support.scraping import KAFKA, Scrape
from tiered_storage.remote_log.metrics.snapshot import take_metrics
from tiered_storage.remote_log.metrics.stored import keep_metrics
from tiered_storage_airflow.demo_cluster.brokers import free_ports

WITHIN_SECONDS = 60


@pytest.fixture(scope="module")
def logins() -> None:
    prepare_logins()


@contextmanager
def endpoint_of(site: ReadServiceSite, port: int) -> Iterator[None]:
    from tiered_storage_airflow.metrics_endpoint import MetricsEndpoint

    site.files.properties["read.service.metrics.port"] = port
    endpoint = MetricsEndpoint(site.service.metrics, None, site.files.open, site.files.settings)
    endpoint.start()
    try:
        yield
    finally:
        endpoint.close()


def scraped_until(port: int, is_reached: Callable[[Scrape], bool]) -> Scrape:
    end = time.monotonic() + WITHIN_SECONDS
    while True:
        found = Scrape.get(port)
        if is_reached(found) or time.monotonic() > end:
            return found
        time.sleep(0.05)


def test_a_scrape_shows_the_kept_metrics_and_what_was_fetched(logins: None, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with ReadServiceSite.open(tmp_path) as site:
        site.changed(lambda log: keep_metrics(log.context.work, take_metrics(log.context)))
        with endpoint_of(site, port):
            answer = site.get("/topics/orders/partitions/0/records", params={"offset": 0, "max_records": 3})
            assert answer.status_code == 200
            found = scraped_until(port, lambda one: one.value("remote_log_partitions", topic="orders") is not None)
        with pytest.raises(httpx.TransportError):
            Scrape.get(port)
    assert found.value(f"{KAFKA}remotecopylagsegments", topic="payments") == 0
    assert (found.value(f"{KAFKA}remotefetchrequests_total", topic="orders") or 0) >= 1
    assert (found.value(f"{KAFKA}remotefetchbytes_total", topic="orders") or 0) > 100
    requests = [value for (name, _), value in found.samples.items() if name == "remote_log_requests_total"]
    assert sum(requests) == 1


def test_before_a_run_has_kept_metrics_only_the_process_has_metrics(logins: None, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with ReadServiceSite.open(tmp_path) as site, endpoint_of(site, port):
        found = scraped_until(port, lambda one: one.value("remote_log_look_failed") == 0)
    assert "remote_log_streams" in found.names
    assert "remote_log_metrics_timestamp_seconds" not in found.names


def test_without_a_port_nothing_is_served_and_a_taken_one_stops_nothing(logins: None, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with ReadServiceSite.open(tmp_path) as site:
        with endpoint_of(site, 0), pytest.raises(httpx.TransportError):
            Scrape.get(port)
        with endpoint_of(site, port), endpoint_of(site, port):
            assert Scrape.get(port).names


def test_the_metrics_of_the_read_service_still_name_no_topic(logins: None, tmp_path: Path) -> None:
    with ReadServiceSite.open(tmp_path) as site:
        site.get("/topics/orders/partitions/0/records", params={"offset": 0, "max_records": 3})
        text = site.get("/metrics").text
    assert "orders" not in text
    assert "remotefetch" not in text


def test_the_api_server_serves_them_while_it_runs(
    logins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage_airflow.web_app import read_service

    port, files = free_ports(1)[0], a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        keep_metrics(remote_log.context.work, take_metrics(remote_log.context))
    files.properties["read.service.metrics.port"] = port
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(files.config))
    with TestClient(read_service()):
        found = scraped_until(port, lambda one: one.value("remote_log_partitions", topic="orders") == 1)
    assert found.value(f"{KAFKA}remotecopylagsegments", topic="orders") == 0
    with pytest.raises(httpx.TransportError):
        Scrape.get(port)
