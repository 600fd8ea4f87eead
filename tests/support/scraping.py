"""Receive metrics: scrape as Prometheus does, with prometheus_client's own parser, or listen for StatsD."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

KAFKA = "kafka_server_brokertopicmetrics_"
KAFKA_REMOTE = "kafka_log_remote_remotelogmanager_"


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one answer, by name and labels."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse `text`; no series may be there twice, which Prometheus refuses."""
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        samples = {(each.name, frozenset(each.labels.items())): float(each.value) for each in found}
        assert len(samples) == len(found)
        return cls(samples)

    @classmethod
    def get(cls, port: int) -> Self:
        """Scrape this machine's `port`."""
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        return cls.of(answer.text)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a series; None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    @property
    def names(self) -> set[str]:
        """The names of all series."""
        return {name for name, _ in self.samples}


class StatsdListener:
    """Receives lines such as `airflow.name:3|g`, until it is closed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(5)
        self.port = int(self._socket.getsockname()[1])

    def received_until(self, last: str) -> dict[str, str]:
        """Return the last value of each metric, up to the first line of the metric `last`."""
        found: dict[str, str] = {}
        while last not in found:
            for line in self._socket.recv(65_536).decode().splitlines():
                name, _, value = line.partition(":")
                found[name] = value
        return found

    def close(self) -> None:
        self._socket.close()
