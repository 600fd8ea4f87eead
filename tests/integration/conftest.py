"""Real Kafka brokers, the servers of a remote log, and a real Spark for the integration tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from integration.remote_servers import RemoteServers, running_servers
from integration.spark_submit import SparkSubmit, isolated_spark
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.live_sites import LiveSite
from tiered_storage.remote_log.storage.clients import hdfs


class StartKafka(Protocol):
    """Starts a broker on a log directory, new or left by another one; it ends with the test."""

    def __call__(self, log_dir: Path, properties: Mapping[str, str] | None = None) -> RealKafka: ...


@pytest.fixture(autouse=True)
def own_hdfs_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test may be another user in HDFS, as another process may."""
    monkeypatch.setattr(hdfs, "_PROCESS_USER", hdfs._ProcessUser())


@pytest.fixture
def start_kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartKafka]:
    """A starter of brokers for the test alone, each with ports of its own."""
    with ExitStack() as brokers:

        def start(log_dir: Path, properties: Mapping[str, str] | None = None) -> RealKafka:
            directory = tmp_path_factory.mktemp("broker")
            return brokers.enter_context(RealKafka(kafka_programs, directory, log_dir=log_dir, properties=properties))

        yield start


@pytest.fixture(scope="module")
def kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker of a module's tests alone: they may restart it in the middle of segments, and delete records."""
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("live-kafka")) as started:
        yield started


@pytest.fixture
def site(kafka: RealKafka, tmp_path: Path, request: pytest.FixtureRequest) -> LiveSite:
    """A remote log beside that broker, of one topic named after the test, which the test makes."""
    topic = request.node.name.partition("[")[0].removeprefix("test_")[:80]
    return LiveSite(kafka, tmp_path, (topic,), {})


@pytest.fixture(scope="module")
def remote_servers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServers]:
    """Three brokers, an S3 server and PostgreSQL, of a module's tests alone, all running before and after each."""
    with running_servers(kafka_programs, tmp_path_factory.mktemp("remote-servers")) as servers:
        yield servers


@pytest.fixture
def spark_submit(state_directory: Path, tmp_path: Path) -> SparkSubmit:
    return isolated_spark(state_directory, tmp_path)
