"""What the benchmarks of a running broker share: their arguments, and a broker that ends with them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import STATE, print_machine

from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

if TYPE_CHECKING:
    from servers.real_kafka import RealKafka

JVM_OPTIONS = (
    *("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Dstdout.encoding=UTF-8"),
)
"""Those of Kafka's own scripts: the tests' brokers start sooner, and are slower."""

sys.path.append(str(PROJECT_ROOT / "tests"))


def arguments(what: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows where to work; `what` is the benchmark's own docstring."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where to work, on the disk to measure")
    return parser


@contextmanager
def one_broker(directory: Path, prefix: str) -> Iterator[tuple[Path, RealKafka]]:
    """Print the machine, start a broker below `directory`, and yield it with a folder that is removed with it."""
    from servers.kafka_programs import KafkaPrograms  # noqa: PLC0415 - the path to it is made above
    from servers.real_kafka import RealKafka  # noqa: PLC0415 - as above

    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix=prefix) as folder:
        root = Path(folder)
        programs = replace(KafkaPrograms.fetched(PROJECT_ROOT / ".state"), jvm_options=JVM_OPTIONS)
        with RealKafka(programs, root / "kafka") as kafka:
            yield root, kafka
