"""A topic of very many partitions whose first halves are remote only, and how a gateway before it is looked at."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import psutil

from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, running_gateway
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, remote_ends
from support.scraping import Scrape
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC = "gateway-scale"
PARTITIONS = 2_000
WORKERS = 2
RECORDS = 40
RECORD_BYTES = 1_000
BATCH_RECORDS = 10
MEMORY_BYTES = 64 << 20
CACHE_BYTES = 16 << 20
USUAL_FILE_LIMIT = 1_024
"""The soft limit of open files that a process has on most systems."""
_CONNECTION_BYTES = 200 << 10
_AT_ONCE = 100
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class ScaleTopic:
    """What is in each partition of TOPIC, by its number: RECORDS records, the first of them remote only.

    `digests` has the hash of its batches. Offsets from `remote_ends` to RECORDS (exclusive) are local.
    """

    topic_id: str
    digests: Mapping[int, str]
    remote_ends: Mapping[int, int]


def scale_site(kafka: RealKafka, root: Path) -> LiveSite:
    """Return a remote log of TOPIC beside `kafka`, whose gateway has WORKERS processes with little memory."""
    settings = {
        "gateway.port": free_first_port([1]),
        "gateway.metrics.port": free_first_port([0]),
        "gateway.workers": WORKERS,
        "gateway.memory.max.bytes": MEMORY_BYTES,
        "remote.log.reader.cache.memory.bytes": CACHE_BYTES,
    }
    return LiveSite(kafka, root, (TOPIC,), settings)


def filled_and_trimmed(site: LiveSite, partitions: int = PARTITIONS) -> ScaleTopic:
    """Create TOPIC, copy the first segments of every partition, and delete them from the broker."""
    client = site.kafka.client
    small = {**SMALL_SEGMENTS, **LONG, "segment.index.bytes": SMALL_SEGMENTS["internal.segment.bytes"]}
    topic_id = client.create_topic(TOPIC, partitions, small)
    _produce(site, partitions)
    digests = {number: _stored(site.kafka.log_dir / f"{TOPIC}-{number}") for number in range(partitions)}
    assert site.copied("--topics", TOPIC)
    ends = remote_ends(site, TOPIC)
    assert ends.keys() == digests.keys()
    assert all(0 < end < RECORDS for end in ends.values())
    client.delete_records_of(TOPIC, ends)
    return ScaleTopic(topic_id, digests, ends)


def allowed_memory(connections: int) -> int:
    """Return how many bytes docs/gateway.md allows to a process of the gateway, beside what it takes at its start.

    The kernel spreads the connections: a process may have all of them.
    """
    return MEMORY_BYTES + 2 * CACHE_BYTES + connections * _CONNECTION_BYTES


def key_of(partition: int, offset: int) -> bytes:
    """Return the key of the record there."""
    return b"%d-%d" % (partition, offset)


def _produce(site: LiveSite, partitions: int) -> None:
    refused = []
    content = random.Random(1)  # noqa: S311 - content, no secret
    # Idempotent: otherwise a batch that is sent again may come after the next one.
    producer = site.kafka.client.producer(
        enable_idempotence=True, batch_num_messages=BATCH_RECORDS, linger_ms=1000, message_timeout_ms=_SECONDS * 1000
    )
    for first in range(0, partitions, _AT_ONCE):
        for number in range(first, min(first + _AT_ONCE, partitions)):
            for offset in range(RECORDS):
                producer.produce(
                    TOPIC, content.randbytes(RECORD_BYTES), key_of(number, offset), number,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                )  # fmt: skip
        assert not producer.flush(_SECONDS)
    assert not refused


def _stored(partition: Path) -> str:
    return hashlib.sha256(b"".join(each.log_path.read_bytes() for each in list_segments(partition))).hexdigest()


@dataclass(frozen=True, slots=True)
class ScaleGateway:
    """The gateway of `site`, and its worker processes."""

    site: LiveSite
    running: RunningGateway
    workers: tuple[psutil.Process, ...]

    @property
    def broker_port(self) -> int:
        """The port of the only broker, whose id is 1."""
        return self.running.port + 2

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all processes."""
        port = int(self.site.settings["gateway.metrics.port"])
        scrapes = [Scrape.get(port + number) for number in range(WORKERS)]
        return sum(value for each in scrapes for (found, _), value in each.samples.items() if found == name)

    def open_files(self) -> list[int]:
        """Return how many files and sockets each process has open."""
        return [each.num_fds() for each in self.workers]

    def memory(self) -> list[int]:
        """Return how many bytes each process has in memory."""
        return [_status(each, "VmRSS") for each in self.workers]

    def most_memory(self) -> list[int]:
        """Return how many bytes each process has had in memory at most."""
        return [_status(each, "VmHWM") for each in self.workers]


def _status(process: psutil.Process, name: str) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def scale_gateway(site: LiveSite) -> Iterator[ScaleGateway]:
    """Start the gateway of `site` with the usual limit of open files."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    with ExitStack() as until_ended:
        setrlimit(RLIMIT_NOFILE, (min(USUAL_FILE_LIMIT, hard), hard))
        try:
            running = until_ended.enter_context(running_gateway(site.config, site.settings["gateway.port"]))
        finally:
            setrlimit(RLIMIT_NOFILE, (soft, hard))
        children = psutil.Process(running.process.pid).children()
        yield ScaleGateway(site, running, tuple(each for each in children if "spawn_main" in str(each.cmdline())))
