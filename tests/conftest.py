"""Fixtures for every kind of test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tiered_storage import disk_space

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]

    from servers.guarded_kafka import GuardedKafka
    from servers.hdfs import HadoopPrograms, RealHdfs
    from servers.kafka_programs import KafkaPrograms
    from servers.real_kafka import RealKafka
    from support.object_stores import S3Endpoint

PROJECT = Path(__file__).parent.parent

STARTS_AIRFLOW = {
    "tests/integration/end_to_end/test_demo.py",
    "tests/integration/end_to_end/test_embedded_airflow.py",
}
"""The nightly ones are named in the Makefile."""

# Examples of each property that does not count its own. `make test` looks at the same ones each time, so that a change
# is judged by what it changed; `make nightly` looks for new ones, and at many more. None has a deadline: a machine that
# has other things to do is no fault of the code.
settings.register_profile("daily", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=1000, deadline=None, derandomize=False)
settings.load_profile("daily")


# Thousands of tests keep a reserve or two; on the disk of pytest's folders none has to be of any use.
disk_space.RESERVE_BYTES = 64 << 10


# What is imported stays to the end: a collector that never looks at it is done sooner.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """Gives all tests of a file to one process, where they share the servers that its fixtures start.

    Those that start an Airflow share one too: two at once on the same cores would both miss their time limits.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what stays together; xdist's documentation lets a scheduler define this."""
        file: str = super()._split_scope(nodeid)
        return "Airflow" if file in STARTS_AIRFLOW else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether | None:
    """Choose it for --dist=loadfile."""
    return FilesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def state_directory() -> Path:
    """Where the project keeps what it fetched or made, from one run of the tests to the next."""
    return PROJECT / ".state"


@pytest.fixture(scope="session", params=["localbucket", "moto"])
def s3_endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """An S3 server over HTTP, one after the other; both last for the session: use a prefix of your own."""
    # These imports take over a second, which tests without S3 need not wait for.
    from support.object_stores import localbucket_server, moto_server

    server = moto_server() if request.param == "moto" else localbucket_server(tmp_path_factory.mktemp("buckets"))
    with server as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def hadoop_programs(state_directory: Path) -> HadoopPrograms:
    """Hadoop's own programs; the first time on a machine they are downloaded."""
    from servers.hdfs import HadoopPrograms

    return HadoopPrograms.fetched(state_directory)


@pytest.fixture(scope="session")
def real_hdfs(hadoop_programs: HadoopPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHdfs]:
    """An HDFS for the session: use a folder of your own, and leave its servers running."""
    from servers.hdfs import RealHdfs

    with RealHdfs(hadoop_programs, tmp_path_factory.mktemp("real-hdfs")) as hdfs:
        yield hdfs


@pytest.fixture(scope="session")
def kafka_programs(state_directory: Path) -> KafkaPrograms:
    """Kafka's own programs; the first time on a machine they are downloaded."""
    from servers.kafka_programs import KafkaPrograms

    return KafkaPrograms.fetched(state_directory)


@pytest.fixture(scope="session")
def real_kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker for the session: name topics after the test, and leave it running."""
    from servers.real_kafka import RealKafka

    with RealKafka(kafka_programs, tmp_path_factory.mktemp("real-kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def guarded_broker(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    """A broker for the session that asks for logins and rights: name topics and groups after the test."""
    from servers.guarded_kafka import guarded_kafka

    with guarded_kafka(kafka_programs, tmp_path_factory.mktemp("guarded-kafka")) as broker:
        yield broker
