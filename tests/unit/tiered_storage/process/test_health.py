from __future__ import annotations

import json
from http import HTTPStatus

import httpx

from tiered_storage.errors import RemoteStorageError
from tiered_storage.process.health import COUNTS_SECONDS, HANGS_SECONDS, Health
from tiered_storage.remote_log.metrics.exporter import Page, serve
from tiered_storage_airflow.demo_cluster.brokers import free_first_port


class Store:
    """Answers, or has a failure; what time it is."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.seconds = 0.0

    def ask(self) -> None:
        if self.failure is not None:
            raise self.failure

    def now(self) -> float:
        return self.seconds

    def health(self) -> Health:
        return Health({"store": self.ask}, self.now)


def problems(page: Page) -> dict[str, str]:
    content = json.loads(page.content)
    assert (page.status is HTTPStatus.OK) == (content["status"] == "ready") == (not content["problems"])
    found: dict[str, str] = content["problems"]
    return found


def test_a_process_is_ready_once_it_serves_and_all_that_it_needs_answers() -> None:
    health = Store().health()
    assert problems(health.ready()).keys() == {"ports", "store"}
    health.check()
    assert problems(health.ready()).keys() == {"ports"}
    health.is_serving = True
    assert problems(health.ready()) == {}

    health.is_serving = False
    assert problems(health.ready()).keys() == {"ports"}


def test_an_answer_counts_for_a_while_and_then_the_failure_is_named() -> None:
    store = Store()
    health = store.health()
    health.is_serving = True
    health.check()
    store.failure = RemoteStorageError("the store is away")
    store.seconds = COUNTS_SECONDS
    health.check()
    assert problems(health.ready()) == {}

    store.seconds += 1
    assert problems(health.ready()) == {"store": "the store is away"}
    store.failure = None
    health.check()
    assert problems(health.ready()) == {}


def test_a_process_lives_while_its_loop_runs() -> None:
    store = Store()
    health = store.health()
    health.is_serving = True
    assert health.health().status is HTTPStatus.OK
    store.seconds = HANGS_SECONDS
    assert health.health().status is HTTPStatus.SERVICE_UNAVAILABLE
    health.beat()
    assert health.health().status is HTTPStatus.OK


def test_the_pages_stand_beside_the_metrics() -> None:
    port = free_first_port([0])
    health = Store().health()
    end = serve(port, setting="a test", pages={"/ready": health.ready, "/health": health.health})
    try:
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 503
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert (metrics.status_code, metrics.headers["content-type"].split(";")[0]) == (200, "text/plain")
    finally:
        end()


def test_a_process_without_ports_says_in_its_own_words_what_is_missing() -> None:
    store = Store()
    health = Health({}, store.now, not_serving=("service", "it is starting"), loop="the pool")

    assert json.loads(health.ready().content)["problems"] == {"service": "it is starting"}
    health.is_serving = True
    store.seconds = HANGS_SECONDS + 1
    assert "the pool has hung" in health.health().content
