"""Clients of all kinds read through a gateway while all fails, and Airflow's DAGs copy, trim and expire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crashes.airflow_parts import HaltingAirflow, halting_airflow
from integration.gateway_faults import read_beside_faults, site_of_readers
from integration.remote_servers import RemoteServers
from servers.kafka_programs import KafkaPrograms

EACH_MINUTE = 'CronDataIntervalTimetable("* * * * *", timezone="UTC")'
SCHEDULES = {
    "copy_segments": EACH_MINUTE,
    "enforce_local_retention": "lambda cluster: [cluster.remote_log]",
    "expire_remote_segments": EACH_MINUTE,
}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_each_client_gets_each_record_once_beside_dags_whatever_fails(
    remote_servers: RemoteServers, kafka_programs: KafkaPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of_readers(remote_servers, tmp_path, monkeypatch, {"scheduled.deletion.enable": True})

    read_beside_faults(remote_servers, kafka_programs, site, running_dags(tmp_path, site.config))


@contextmanager
def running_dags(root: Path, config: Path) -> Iterator[None]:
    """Let Airflow's scheduler run the DAGs; see that runs of each of them succeeded."""
    begun = datetime.now(UTC)
    with halting_airflow(HaltingAirflow, root, config, tuple(SCHEDULES), SCHEDULES) as airflow:
        yield
        with airflow.api() as api:
            states = {dag_id: [run.state for run in api.runs(dag_id, begun)] for dag_id in SCHEDULES}
    assert [dag_id for dag_id, found in states.items() if "success" not in found] == [], states
