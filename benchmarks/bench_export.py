"""Read a topic into Parquet and into Spark: ours from the store, Spark's Kafka source from a real broker.

Both read the same records, 1 KiB each, uncompressed, which a real client produced to a real broker. The closed segments
were then copied. Two Spark sessions (local[2]), ours and one of the connector's release, run four ways in turns:

    export to Parquet        workers write in Arrow       against  Kafka source (connector 4.0.0), Spark's writer
    scan to nowhere          the data source remote_log   against  Kafka source

with the same columns and codec. Before each round the results of the one before are removed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from kafka_source_session import EXPORT, SCAN, serve, to_nowhere
from measuring import STATE, Goal, Timings, judge, print_comparison, print_machine
from spark_sessions import CONNECTOR, SessionProcess, session_environment, spark_of_the_connector

from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.tables.export_job import ExportRequest, run_export_groups
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

sys.path.append(str(PROJECT_ROOT / "tests"))

TOPIC = "benchmark"
PARTITIONS = 2
RECORD_BYTES = 1024
SEGMENT_BYTES = 64 << 20
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
        """Where our exports go."""
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
        return RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True)

    def copy(self) -> tuple[dict[str, int], int]:
        """Copy all closed segments; return the offset after the last copied one of each partition, and all bytes."""
        with self.open() as remote_log:
            begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
            cut = remote_log.context.settings
            sizes = CopySizes(cut.copy_window_bytes, cut.index_interval_bytes, cut.remote_log_index_chunk_bytes)
            outcomes = [copy_segment(task, remote_log.context.storage, sizes, wall_clock) for task in begun.tasks]
            if not remote_log.commit_copy(outcomes).is_whole:
                raise SystemExit("the copy failed, nothing was measured")
            plan = remote_log.tables.plan(TableQuery(TOPIC))
            ends = {str(each.topic_id_partition.partition): each.log_end_offset for each in plan.partitions}
            return ends, sum(each.segment.size for each in plan.ranges())


def produce(servers: str, size: int, topic: str = TOPIC) -> None:
    """Produce `size` bytes of values that no codec could make much smaller, in turns to the partitions."""
    from confluent_kafka import Producer  # noqa: PLC0415 - only the parent needs it

    chance = random.Random(1)  # noqa: S311 - content, no secret
    values = [chance.randbytes(RECORD_BYTES) for _ in range(1024)]
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.num.messages": 500, "acks": 1})
    for number in range(size // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, values[number % 1024], b"key-%012d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


class OurWays:
    """Our two ways, in a Spark session."""

    def __init__(self, site: Site, codec: str) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the parent has no session

        from tiered_storage_airflow.spark_tables import register  # noqa: PLC0415 - needs Spark

        self._spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
        register(self._spark)
        self._site = site
        self._codec = codec
        self._round = 0

    def export(self) -> None:
        """Do what the operator and its Spark job do, in the running session."""
        shutil.rmtree(self._site.exports, ignore_errors=True)
        self._round += 1
        folder = f"runs/benchmark/{self._round}"
        request = ExportRequest(TableQuery(TOPIC), EVER, self._site.exports.as_uri(), self._codec)
        with self._site.open() as remote_log, remote_log.tables.export(request, "benchmark") as begun:
            job = begun.write_job(folder)
            access = remote_log.context.access(job.files)
            groups = self._spark.sparkContext.parallelize(range(job.groups), job.groups)
            groups.map(lambda number: run_export_groups(access, [number])).sum()
            begun.commit(list(job.outcomes()))

    def scan(self) -> None:
        """Read all columns and throw them away."""
        source = self._spark.read.format("remote_log").option("topic", TOPIC).option("config", str(self._site.config))
        to_nowhere(source.load())


def measured(
    site: Site, servers: str, ends: Mapping[str, int], arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Run all four ways in turns; return the seconds of each round."""
    here, theirs = Path(__file__).parent, spark_of_the_connector()
    by_spark = site.root / "by-spark"
    our_command = [sys.executable, __file__, "--session", "--directory", site.root, "--codec", arguments.codec]
    their_command = [
        theirs,
        here / "kafka_source_session.py",
        servers,
        TOPIC,
        json.dumps(ends),
        arguments.codec,
        by_spark,
    ]
    our_environment = session_environment(site.root, Path(sys.executable))
    their_environment = session_environment(site.root, theirs, CONNECTOR)
    with (
        SessionProcess(our_command, our_environment, site.root / "ours.log") as ours,
        SessionProcess(their_command, their_environment, site.root / "theirs.log") as kafka,
    ):
        ways = {
            OUR_EXPORT: (ours, EXPORT, site.exports),
            THEIR_EXPORT: (kafka, EXPORT, by_spark),
            OUR_SCAN: (ours, SCAN, None),
            THEIR_SCAN: (kafka, SCAN, None),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            for name, (session, way, files) in ways.items():
                taken = session.seconds_of(way)
                ensure_all(name, files, sum(ends.values()))
                if number:  # the first round warms everything up
                    seconds[name].append(taken)
        return seconds


def ensure_all(name: str, files: Path | None, expected: int) -> None:
    """Exit with an error if `files` do not have all records."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - heavy

    if files is None:
        return
    found = sum(pq.ParquetFile(file).metadata.num_rows for file in files.rglob("*.parquet"))
    if found != expected:
        raise SystemExit(f"{name}: {found} records of {expected}")


def in_rounds(arguments: argparse.Namespace, directory: Path) -> int:
    """Prepare, measure and report; return the exit code."""
    from servers.kafka_programs import KafkaPrograms  # noqa: PLC0415 - the path to it is made above
    from servers.real_kafka import RealKafka  # noqa: PLC0415 - as above

    site = Site(directory)
    kafka = RealKafka(KafkaPrograms.fetched(PROJECT_ROOT / ".state"), directory / "broker", log_dir=site.logs)
    with kafka:
        kafka.client.create_topic(TOPIC, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        produce(kafka.bootstrap_servers, arguments.size << 20)
        with kafka.stopped():
            site.configure()
            ends, size = site.copy()
        seconds = measured(site, kafka.bootstrap_servers, ends, arguments)
    timings = {name: Timings(name, size, each) for name, each in seconds.items()}
    print(f"{size / 1e6:,.0f} MB of {RECORD_BYTES} byte records, {arguments.rounds} rounds, codec {arguments.codec}")
    return report(timings)


def report(timings: dict[str, Timings]) -> int:
    """Print both comparisons and whether their goals were met."""
    goals = []
    for ours, theirs, goal in ((OUR_EXPORT, THEIR_EXPORT, EXPORT_GOAL), (OUR_SCAN, THEIR_SCAN, SCAN_GOAL)):
        print_comparison([timings[ours]], timings[theirs])
        our_rate, their_rate = timings[ours].median, timings[theirs].median
        ratio = our_rate / their_rate
        goals.append(Goal(ours, f"{our_rate:.3f} GB/s", f"{their_rate:.3f} {theirs}", ratio, goal))
    return judge(goals)


def arguments_of(given: list[str] | None = None) -> Iterator[argparse.Namespace]:
    """Yield the arguments, with a temporary directory if none is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="MiB of values to produce")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="snappy")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--session", action="store_true", help=argparse.SUPPRESS)
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
            ways = OurWays(Site(arguments.directory), arguments.codec)
            serve({EXPORT: ways.export, SCAN: ways.scan})
            continue
        print_machine(arguments.directory)
        code = in_rounds(arguments, arguments.directory)
    return code


if __name__ == "__main__":
    sys.exit(main())
