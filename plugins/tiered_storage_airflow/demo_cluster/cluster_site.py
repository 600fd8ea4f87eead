"""The settings file, the connections and the schedules of the demo's Airflow."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.demo_cluster.postgres import PASSWORD, USER, PostgresServer
from tiered_storage_airflow.demo_cluster.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE
from tiered_storage_airflow.forms.fields import TOPICS_VARIABLE

SCHEDULES = {"copy_segments": 15, "watch_remote_log": 30, "expire_remote_segments": 60}
"""How many seconds lie between two runs of a DAG. Local retention needs none: it runs after each copy."""
LOCAL_RETENTION_MS = 10_000
_TRIMMED = {
    "remote.storage.enable": True,
    "local.deletion.allowed": True,
    "local.retention.ms": LOCAL_RETENTION_MS,
}
_DATABASE = "metadata"

# Airflow reads this file by itself: https://airflow.apache.org/docs/apache-airflow/stable/cluster-policies
_POLICY = f'''\
"""Written by make demo-cluster: two minutes are too short for schedules of minutes and hours."""

from datetime import timedelta


def dag_policy(dag):
    from airflow.sdk import DeltaDataIntervalTimetable

    seconds = {SCHEDULES}.get(dag.dag_id)
    if seconds is not None:
        dag.timetable = DeltaDataIntervalTimetable(timedelta(seconds=seconds))
'''


@dataclass(frozen=True, slots=True)
class ClusterSite:
    """A remote log of `topics` beside the cluster at `bootstrap_servers`, with its settings below `state`."""

    state: Path
    bootstrap_servers: str
    topics: tuple[str, ...]
    s3: S3Server
    postgres: PostgresServer

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.state / "tiered_storage.yaml"

    def write(self, airflow_home: Path) -> None:
        """Write the settings file, create the database, and give the Airflow at `airflow_home` the demo's schedules."""
        self.postgres.database(_DATABASE)
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "state.directory": str(self.state),
            "rsm.config.url": f"s3://{BUCKET}/remote",
            "rsm.config.endpoint": self.s3.url,
            "rsm.config.region": REGION,
            "rsm.config.allow.http": True,
            "rlmm.config.url": f"postgresql://127.0.0.1:{self.postgres.port}/{_DATABASE}",
            "scheduled.deletion.enable": True,
            "topics": {topic: dict(_TRIMMED) for topic in self.topics},
        }
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        policies = airflow_home / "config"
        policies.mkdir(parents=True)
        (policies / "airflow_local_settings.py").write_text(_POLICY, encoding="utf-8")

    def airflow_environment(self) -> dict[str, str]:
        """Return the environment of Airflow: credentials as connections, all topics, and a database of its own."""
        storage = {"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY}
        metadata = {"conn_type": "postgres", "login": USER, "password": PASSWORD}
        return {
            **os.environ,
            "AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT": json.dumps(storage),
            "AIRFLOW_CONN_REMOTE_LOG_METADATA_DEFAULT": json.dumps(metadata),
            f"AIRFLOW_VAR_{TOPICS_VARIABLE.upper()}": ".*",
            DATABASE_VARIABLE: "",
        }

    def command_environment(self) -> dict[str, str]:
        """Return the environment of a command of ours: without Airflow, the credentials are variables."""
        return {**os.environ, **self._logins}

    def open(self) -> RemoteLogManager:
        """Open the remote log in this process."""
        settings = load_settings(self.config, environ=self._logins)
        return RemoteLogManager.open(settings, wall_clock, store_options(settings, self._logins), create=True)

    @property
    def _logins(self) -> dict[str, str]:
        return {
            "TIERED_STORAGE_RLMM_CONFIG_URL": self.postgres.url(_DATABASE),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
