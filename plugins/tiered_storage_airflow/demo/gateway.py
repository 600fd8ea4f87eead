"""A gateway on a demo's settings, as a process of its own, and all that an ordinary Kafka client reads from it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import cast

import yaml
from confluent_kafka import Consumer, Message, TopicPartition

from tiered_storage.kafka_log.records.record import Headers, Record
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition
from tiered_storage_airflow.demo.setting_up import DemoPlaces, free_port
from tiered_storage_airflow.embedded.environment import LOOPBACK, virtual_environment_bin

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_READY = "the gateway serves"
_SILENT_SECONDS = 60.0
_AT_ONCE = 1_000
_AT_MOST_SECONDS = 0.1
"""How many records the client hands over together, and how long it gathers them."""


def compare_by_gateway(places: DemoPlaces, expected: Sequence[ExpectedPartition], starts: Mapping[str, int]) -> int:
    """Read every partition, from its start by name to its last record; return how many records were equal.

    Raises DemoError at the first difference.
    """
    with running_gateway(places.config, places.state, free_port()) as address:
        return sum(_compare(address, each, starts[str(each)]) for each in expected)


def _compare(address: str, expected: ExpectedPartition, start_offset: int) -> int:
    wanted = dropwhile(lambda record: record.offset < start_offset, expected.records())
    count = 0
    with closing(_read(address, expected, start_offset)) as found:
        for record in wanted:
            if record != next(found):
                raise DemoError(f"{expected}: the gateway gives another record than was written at {record.offset}")
            count += 1
    return count


def _read(address: str, expected: ExpectedPartition, start_offset: int) -> Generator[Record, None, None]:
    """Yield the records from `start_offset` on. Raises DemoError if nothing more comes."""
    properties = {
        "bootstrap.servers": address,
        "group.id": "demo",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # As the comparisons before: aborted records too.
        "isolation.level": "read_uncommitted",
    }
    with closing(Consumer(properties)) as consumer:
        consumer.assign([TopicPartition(expected.topic, expected.partition, start_offset)])
        while messages := consumer.consume(_AT_ONCE, timeout=_AT_MOST_SECONDS) or consumer.consume(1, _SILENT_SECONDS):
            yield from (_record(expected, message) for message in messages)
    raise DemoError(f"{expected}: the gateway gives too few records, and nothing for {_SILENT_SECONDS:.0f} seconds")


def _record(expected: ExpectedPartition, message: Message) -> Record:
    error = message.error()
    if error is not None:
        raise DemoError(f"{expected}: the gateway answers with {error}")
    headers = cast(Headers, tuple(message.headers() or ()))
    return Record(cast(int, message.offset()), message.timestamp()[1], message.key(), message.value(), headers)


@contextmanager
def running_gateway(config: Path, state: Path, port: int, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start the gateway on the settings of `config` and on `port`, yield its address, and end it.

    Its own settings and its log are below `state`. Raises DemoError if it does not serve.
    """
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    own, said = state / "gateway.yaml", state / "gateway.log"
    own.write_text(yaml.safe_dump({**settings, "gateway.port": port}, sort_keys=False), encoding="utf-8")
    command = [str(virtual_environment_bin() / "tiered-storage"), "gateway", "--config", str(own)]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)  # noqa: S603 - ours
    try:
        _wait_until_it_serves(process, said)
        yield f"{LOOPBACK}:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        finally:
            process.kill()


def _wait_until_it_serves(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while _READY not in (said := log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > end:
            raise DemoError(f"tiered-storage gateway does not serve: {said}")
        time.sleep(0.05)
