"""A topic to Parquet, and into Spark: ours out of the store, and Spark's Kafka source with a real broker in the path.

The same records for both: 1 KiB each, uncompressed, produced by a real client into a real broker, whose closed segments
are then copied. One Spark session (local[2]) measures all four ways by turns:

    export to Parquet        workers write in Arrow       against  Kafka source (connector 4.0.0), Spark's writer
    scan to nowhere          the data source remote_log   against  Kafka source

with the same columns and codec. Before each round the results of the one before are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from measuring import STATE, Timings, print_comparison, print_goal, print_machine

from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.copier import CopySizes, copy_segment
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.remote_log_parts import store_options
from tiered_storage.remote_log.remote_log_tables import ExportRequest
from tiered_storage.remote_log.tables.export_worker import run_export_group
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.settings import load_settings
from tiered_storage_airflow.embedded.environment import LOOPBACK, PROJECT_ROOT
from tiered_storage_airflow.embedded.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(PROJECT_ROOT / "tests"))

TOPIC = "benchmark"
PARTITIONS = 2
RECORD_BYTES = 1024
SEGMENT_BYTES = 64 << 20
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
EXPORT_GOAL, SCAN_GOAL = 1.5, 1.0
EVER = Interval(0, 1 << 42)
OUR_EXPORT, THEIR_EXPORT = "export_topic's job", "Kafka source, Spark's Parquet writer"
OUR_SCAN, THEIR_SCAN = "data source remote_log to nowhere", "Kafka source to nowhere"


@dataclass(frozen=True, slots=True)
class Site:
    """Everything below `root`: the broker's log directory, our settings and state, and what is exported."""

    root: Path

    @property
    def logs(self) -> Path:
        """The broker's log directory."""
        return self.root / "log-dir"

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "tiered_storage.yaml"

    @property
    def exports(self) -> Path:
        """Where ours are exported to."""
        return self.root / "exports"

    def configure(self) -> None:
        """Write the settings."""
        settings = {
            "log.dirs": [str(self.logs)],
            "state.directory": str(self.root / "state"),
            "export.url": self.exports.as_uri(),
            "topics": {TOPIC: {"remote.storage.enable": True}},
        }
        self.config.write_text(yaml.safe_dump(settings))

    def open(self) -> RemoteLogManager:
        """Open the remote log; use it in a `with`."""
        settings = load_settings(self.config, environ={})
        return RemoteLogManager.open(settings, wall_clock, store_options(settings))

    def copy(self) -> dict[str, int]:
        """Copy all closed segments; return the offset behind the last copied one of each partition, and all bytes."""
        with self.open() as remote_log:
            begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
            cut = remote_log.settings
            sizes = CopySizes(cut.copy_window_bytes, cut.index_interval_bytes, cut.remote_log_index_chunk_bytes)
            outcomes = [copy_segment(task, remote_log.storage, sizes, wall_clock) for task in begun.tasks]
            if not remote_log.commit_copy(outcomes).is_whole:
                raise SystemExit("the copy failed, nothing was measured")
            plan = remote_log.tables.plan(TableQuery(TOPIC))
            ends = {str(each.topic_id_partition.partition): each.log_end_offset for each in plan.partitions}
            return {**ends, "bytes": sum(each.segment.size for each in plan.ranges())}


def produce(servers: str, size: int) -> None:
    """Produce `size` bytes of values that no codec could make much smaller, in turns to the partitions."""
    from confluent_kafka import Producer  # noqa: PLC0415 - only the parent needs it

    chance = random.Random(1)  # noqa: S311 - content, no secret
    values = [chance.randbytes(RECORD_BYTES) for _ in range(1024)]
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.num.messages": 500, "acks": 1})
    for number in range(size // RECORD_BYTES):
        while True:
            try:
                producer.produce(TOPIC, values[number % 1024], b"key-%012d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


class Session:
    """The ways that are measured, in one Spark session."""

    def __init__(self, spark: SparkSession, site: Site, codec: str, servers: str, ends: dict[str, int]) -> None:
        from tiered_storage_airflow.spark_tables import register  # noqa: PLC0415 - needs Spark

        register(spark)
        self._spark = spark
        self._site = site
        self._codec = codec
        self._servers = servers
        self._ends = ends
        self._round = 0

    def ways(self) -> dict[str, Callable[[], int]]:
        """Return what is measured, by name; each returns how many records there were."""
        return {
            OUR_EXPORT: self.export,
            THEIR_EXPORT: self.kafka_to_parquet,
            OUR_SCAN: self.scan,
            THEIR_SCAN: self.kafka_scan,
        }

    def export(self) -> int:
        """Do what the operator and its Spark job do, in the session that is up."""
        shutil.rmtree(self._site.exports, ignore_errors=True)
        self._round += 1
        folder = f"runs/benchmark/{self._round}"
        request = ExportRequest(TableQuery(TOPIC), EVER, self._site.exports.as_uri(), self._codec)
        with self._site.open() as remote_log, remote_log.tables.export(request, "benchmark") as begun:
            job = begun.write_job(folder)
            work = remote_log.work.url
            groups = self._spark.sparkContext.parallelize(range(job.groups), job.groups)
            groups.map(lambda number: run_export_group(work, folder, number)).sum()
            return begun.commit(list(job.outcomes())).rows

    def scan(self) -> int:
        """Read all columns and throw them away."""
        source = self._spark.read.format("remote_log").option("topic", TOPIC).option("config", str(self._site.config))
        return self._to_nowhere(source.load())

    def kafka_to_parquet(self) -> int:
        """Read by Spark's Kafka source and write by Spark's writer."""
        path = self._site.root / "by-spark"
        shutil.rmtree(path, ignore_errors=True)
        self._kafka().write.option("compression", self._codec).parquet(str(path))
        return self._counted(path)

    def kafka_scan(self) -> int:
        """Read by Spark's Kafka source and throw it away."""
        return self._to_nowhere(self._kafka())

    def _to_nowhere(self, rows: DataFrame) -> int:
        rows.write.format("noop").mode("overwrite").save()
        return -1

    def _kafka(self) -> DataFrame:
        numbers = {number: end for number, end in self._ends.items() if number != "bytes"}
        return (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", TOPIC)
            .option("includeHeaders", "true")
            .option("startingOffsets", json.dumps({TOPIC: dict.fromkeys(numbers, 0)}))
            .option("endingOffsets", json.dumps({TOPIC: numbers}))
            .load()
        )

    def _counted(self, path: Path) -> int:
        import pyarrow.parquet as pq  # noqa: PLC0415 - not while Spark is measured

        return sum(pq.ParquetFile(file).metadata.num_rows for file in path.rglob("*.parquet"))


def measure(arguments: argparse.Namespace) -> None:
    """Measure in a Spark session, and print the seconds of each round and way as JSON."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the parent has no session

    ends: dict[str, int] = json.loads(arguments.ends)
    expected = sum(end for name, end in ends.items() if name != "bytes")
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    session = Session(spark, Site(arguments.directory), arguments.codec, arguments.session, ends)
    seconds: dict[str, list[float]] = {name: [] for name in session.ways()}
    for number in range(arguments.rounds + 1):
        for name, way in session.ways().items():
            begun = time.perf_counter()
            found = way()
            if found not in {expected, -1}:
                raise SystemExit(f"{name}: {found} records of {expected}")
            if number:  # the first round warms everything up
                seconds[name].append(time.perf_counter() - begun)
    spark.stop()
    print(json.dumps(seconds))


def session_environment(directory: Path) -> dict[str, str]:
    """Return the environment of the process with the session: its Java, and Spark's connector."""
    from support.kafka_jars import trust_options  # noqa: PLC0415 - the path to it is made above

    trusted = " ".join(f'"{option}"' for option in trust_options(directory / "trusted.p12"))
    arguments = ["--master", "local[2]", "--packages", CONNECTOR, "--conf", f"spark.jars.ivy={STATE / 'ivy'}"]
    arguments += ["--conf", "spark.driver.memory=2g", "pyspark-shell"]
    return {
        **os.environ,
        "SPARK_LOCAL_IP": LOOPBACK,
        "JDK_JAVA_OPTIONS": trusted,
        "PYSPARK_SUBMIT_ARGS": " ".join(arguments),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(java_home(PROJECT_ROOT / ".state", os.environ)),
    }


def run_session(site: Site, servers: str, ends: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own; return its seconds."""
    command = [sys.executable, __file__, "--session", servers, "--ends", json.dumps(ends)]
    command += ["--directory", str(site.root), "--rounds", str(arguments.rounds), "--codec", arguments.codec]
    done = subprocess.run(
        command,
        env=session_environment(site.root),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the session failed, nothing was measured:\n{done.stderr[-6000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_rounds(arguments: argparse.Namespace, directory: Path) -> int:
    """Prepare, measure and report; return the exit code."""
    from support.kafka_programs import KafkaPrograms  # noqa: PLC0415 - the path to it is made above
    from support.real_kafka import RealKafka  # noqa: PLC0415 - as above

    site = Site(directory)
    kafka = RealKafka(KafkaPrograms.fetched(PROJECT_ROOT / ".state"), directory / "broker", log_dir=site.logs)
    with kafka:
        kafka.client.create_topic(TOPIC, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        produce(kafka.bootstrap_servers, arguments.size << 20)
        with kafka.stopped():
            site.configure()
            ends = site.copy()
        seconds = run_session(site, kafka.bootstrap_servers, ends, arguments)
    size = ends["bytes"]
    timings = {name: Timings(name, size, each) for name, each in seconds.items()}
    print(f"{size / 1e6:,.0f} MB of {RECORD_BYTES} byte records, {arguments.rounds} rounds, codec {arguments.codec}")
    return report(timings)


def report(timings: dict[str, Timings]) -> int:
    """Print both comparisons and whether their goals were met."""
    code = 0
    for ours, theirs, goal in ((OUR_EXPORT, THEIR_EXPORT, EXPORT_GOAL), (OUR_SCAN, THEIR_SCAN, SCAN_GOAL)):
        print_comparison([timings[ours]], timings[theirs])
        ratio = timings[ours].median / timings[theirs].median
        code |= print_goal(f"{ours}: at least {goal} times {theirs}: {ratio:.2f}", met=ratio >= goal)
    return code


def arguments_of(given: list[str] | None = None) -> Iterator[argparse.Namespace]:
    """Yield the arguments, with a directory that goes afterwards where none is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="MiB of values to produce")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="snappy")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--session", help=argparse.SUPPRESS)
    parser.add_argument("--ends", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.directory is not None:
        yield arguments
        return
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="export-", dir=STATE) as directory:
        arguments.directory = Path(directory)
        yield arguments


def main() -> int:
    """Run it."""
    code = 0
    for arguments in arguments_of():
        if arguments.session:
            measure(arguments)
            continue
        print_machine(arguments.directory)
        code = in_rounds(arguments, arguments.directory)
    return code


if __name__ == "__main__":
    sys.exit(main())
