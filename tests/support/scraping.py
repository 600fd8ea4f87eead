"""Scrape an endpoint as Prometheus does, with prometheus_client's own parser."""

from __future__ import annotations

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
