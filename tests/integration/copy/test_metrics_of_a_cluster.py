"""Prometheus scrapes the metrics of a live cluster: a copy brings the lag to 0."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from servers.real_kafka import RealKafka
from support.command_line import mentions, run
from support.records import varied_records
from support.scraping import KAFKA, KAFKA_REMOTE, Scrape
from tiered_storage_airflow.demo_cluster.brokers import free_ports

TOPIC = "metrics-of-a-cluster"
SEGMENT_BYTES = 16_384
CONFIGS = {
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "segment.ms": str(1 << 60),
    "retention.bytes": str(4 << 20),
}
PARTITIONS = 2
WITHIN_SECONDS = 120


@contextmanager
def serving(config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve the metrics in a process of their own, as an installation does."""
    command = [sys.executable, "-m", "tiered_storage.cli.main", "metrics", "--serve", str(port), "--every", "1"]
    with subprocess.Popen([*command, "--config", str(config)]) as process:
        try:
            yield process
        finally:
            process.terminate()


def scraped_until(port: int, is_reached: Callable[[Scrape], bool]) -> Scrape:
    """Scrape until the metrics are such."""
    end, found = time.monotonic() + WITHIN_SECONDS, None
    while time.monotonic() < end:
        try:
            found = Scrape.get(port)
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        if is_reached(found):
            return found
        time.sleep(0.2)
    raise AssertionError(found)


def test_a_scrape_shows_the_lag_and_a_copy_brings_it_to_zero(real_kafka: RealKafka, tmp_path: Path) -> None:
    config, port = tmp_path / "settings.yaml", free_ports(1)[0]
    settings = {
        "bootstrap.servers": real_kafka.bootstrap_servers,
        "state.directory": str(tmp_path / "state"),
        "topics": {TOPIC: {"remote.storage.enable": True}},
    }
    config.write_text(yaml.safe_dump(settings))
    real_kafka.client.create_topic(TOPIC, PARTITIONS, CONFIGS)
    for number in range(PARTITIONS):
        records = varied_records(700, seed=number)
        real_kafka.client.produce(TOPIC, records, partition=number, batch_num_messages=40)
    # The first copy creates the metadata.
    assert run("copy", "--topics", TOPIC, "--max-segments", 1, "--config", config).exit_code == 0

    with serving(config, port):
        behind = scraped_until(port, lambda found: bool(found.value(f"{KAFKA}remotecopylagsegments", topic=TOPIC)))
        while run("copy", "--topics", TOPIC, "--json", "--config", config).rows:
            pass
        copied = scraped_until(port, lambda found: found.value(f"{KAFKA}remotecopylagsegments", topic=TOPIC) == 0)
        # Half of it passes until a tail is copied.
        real_kafka.client.alter_topic(TOPIC, {"retention.ms": str(86_400_000)})
        name = "remote_log_short_retention_margins"
        short = scraped_until(port, lambda found: found.value(name, topic=TOPIC) == PARTITIONS)

    assert (behind.value(f"{KAFKA}remotecopylagbytes", topic=TOPIC) or 0) >= SEGMENT_BYTES
    assert (behind.value("remote_log_copy_lag_seconds", topic=TOPIC) or 0) > 0
    assert copied.value(f"{KAFKA}remotecopylagbytes", topic=TOPIC) == 0
    assert (copied.value("remote_log_copy_lag_seconds", topic=TOPIC) or 0) == 0
    rows = run("segments", "--topics", TOPIC, "--json", "--config", config).rows
    size = sum(row["bytes"] for row in rows)
    assert copied.value(f"{KAFKA}remotecopybytes_total", topic=TOPIC) == size > 0
    assert copied.value(f"{KAFKA}remotelogsizebytes", topic=TOPIC) == size
    assert copied.value(f"{KAFKA}remotecopyrequests_total", topic=TOPIC) == len(rows)
    assert copied.value("remote_log_missing_offsets", topic=TOPIC) == 0
    rules = [value for (name, _), value in copied.samples.items() if name == "remote_log_offset_violations"]
    assert rules == [0.0] * 4
    assert copied.value("remote_log_partitions", topic=TOPIC) == PARTITIONS
    used = [copied.value(f"{KAFKA_REMOTE}retentionsizeinpercent", topic=TOPIC, partition=each) for each in "01"]
    assert all(share is not None and 0 < share < 100 for share in used), used
    assert copied.value(f"{KAFKA_REMOTE}localretentionsizeinpercent", topic=TOPIC, partition="0") is not None
    assert copied.value("remote_log_retention_margin_seconds", topic=TOPIC) is None, "brokers delete nothing by age"
    assert copied.value("remote_log_short_retention_margins", topic=TOPIC) == 0
    assert short.value("remote_log_retention_margin_seconds", topic=TOPIC) == 43_200
    assert short.value("remote_log_lowered_limits", topic=TOPIC) == 0, "nothing remote may be deleted of it"
    shown = run("metrics", "--config", config)
    assert shown.exit_code == 1
    assert mentions(" ".join((shown.out + shown.err).split()), "12.0 h")
