"""Parts of an embedded Airflow whose processes are killed: DAGs that run on demand, and another scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tiered_storage_airflow.embedded.credentials import read
from tiered_storage_airflow.embedded.environment import EmbeddedAirflow, airflow_environment, virtual_environment_bin
from tiered_storage_airflow.embedded.java import java_home
from tiered_storage_airflow.embedded.processes import MARK_VARIABLE, start
from tiered_storage_airflow.embedded.record import SCHEDULER, RunningAirflow, write_record

PROJECT = Path(__file__).parents[2]
SOON_DEAD = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
}
"""Settings by which a task without a heartbeat counts as dead after seconds, not minutes."""


def unscheduled_dags(folder: Path, dag_ids: Iterable[str]) -> Path:
    """Write the DAGs with no schedule, and with retries that come at once; return their folder."""
    folder.mkdir()
    for dag_id in dag_ids:
        code = (PROJECT / "dags" / f"{dag_id}.py").read_text()
        for found, put in (
            (r"^    schedule=(?:.*,|.*\($(?:\n     .*$)*\n    \),)$", "    schedule=None,"),
            (r"\*\*DEFAULT_ARGS,", '**DEFAULT_ARGS, "retry_delay": timedelta(seconds=1),'),
        ):
            code, count = re.subn(found, put, code, flags=re.MULTILINE)
            assert count == 1, (dag_id, found)
        (folder / f"{dag_id}.py").write_text(code)
    return folder


def with_another_scheduler(
    running: RunningAirflow, embedded: EmbeddedAirflow, environ: Mapping[str, str]
) -> RunningAirflow:
    """Start a scheduler in place of one that was killed, with the rest of Airflow, and its tasks, as they are."""
    environment = airflow_environment(embedded, read(embedded.home), java_home(embedded.state, environ), environ)
    command = [str(virtual_environment_bin() / "airflow"), "scheduler", "--skip-serve-logs"]
    log = running.service_logs / f"{SCHEDULER}.log"
    marked = {**environment, MARK_VARIABLE: running.mark}
    scheduler = start(SCHEDULER, command, marked, log=log, directory=running.home)
    others = [one for one in running.services if one.name != SCHEDULER]
    restarted = replace(running, services=(*others, scheduler))
    write_record(restarted)
    return restarted
