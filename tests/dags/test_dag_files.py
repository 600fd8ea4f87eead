"""The DAG files: what each has to have, and that parsing one costs next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.airflow_home import CONFIGURATION, PROJECT, AirflowHome
from tiered_storage_airflow.embedded.settings_file import VariableSettings, read_airflow_settings
from tiered_storage_airflow.topic_choice import TOPICS, TOPICS_VARIABLE

FILES = sorted((PROJECT / "dags").glob("*.py"))
SCREEN = 60
HEAVY = ("numba", "numpy", "pandas", "pyarrow", "obstore", "pyspark", "tiered_storage")
PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag

begun = time.process_time()
bag = DagBag(dag_folder=sys.argv[1])
seconds = time.process_time() - begun
found = {
    "errors": bag.import_errors,
    "dags": sorted(bag.dags),
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "seconds": seconds,
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process that parses the DAG files, and nothing else, sees of them."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "airflow.cfg").write_text(CONFIGURATION)
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(PROJECT / "dags")],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_file_is_a_dag_of_its_name(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["dags"] == [path.stem for path in FILES]
    assert len(FILES) >= 4


def test_parsing_loads_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert [name for name in HEAVY if name in parsed["modules"]] == []


def test_parsing_takes_no_time(parsed: dict[str, Any]) -> None:
    # Of the processor, that is, for all files together: how busy the machine is says nothing about them.
    assert parsed["seconds"] < 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dag_file_fits_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= SCREEN


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_a_dag_says_what_it_does_and_runs_once_at_a_time(airflow: AirflowHome, dag_id: str) -> None:
    dag = airflow.dag(dag_id)
    assert dag.doc_md
    assert len(dag.doc_md.splitlines()) >= 3
    assert "tiered-storage" in dag.tags
    assert len(dag.tags) == 2
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    for name in dag.params:
        assert dag.params.get_param(name).schema["title"], name
    assert "topics" in dag.params


def test_whatever_moves_or_reads_much_ends_at_some_time_and_is_tried_again_except_for_the_audit(
    airflow: AirflowHome,
) -> None:
    bounded = {
        "copy_segments": ["copy"],
        "enforce_local_retention": ["trim"],
        "expire_remote_segments": ["delete"],
        "audit_remote_log": ["audit"],
    }
    for dag_id, task_ids in bounded.items():
        dag = airflow.dag(dag_id)
        for task_id in task_ids:
            timeout = dag.task_dict[task_id].execution_timeout
            assert timeout is not None
            assert timeout <= timedelta(hours=6)
        for task in dag.tasks:
            assert task.retries == (0 if dag_id == "audit_remote_log" else 3), task.task_id


def test_moving_bytes_takes_a_slot_of_a_pool_of_its_own(airflow: AirflowHome) -> None:
    assert airflow.dag("copy_segments").task_dict["copy"].pool == "remote_log_copier"
    assert airflow.dag("expire_remote_segments").task_dict["delete"].pool == "remote_log_deleter"
    settings = (PROJECT / "airflow_settings.yaml").read_text()
    assert "pool_name: remote_log_copier" in settings
    assert "pool_name: remote_log_deleter" in settings


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_topics_left_empty_are_those_of_the_variable(airflow: AirflowHome, dag_id: str) -> None:
    dag = airflow.dag(dag_id)
    choosing = [task for task in dag.tasks if "topics" in task.template_fields]
    assert choosing
    assert {vars(task)["topics"] for task in choosing} == {TOPICS}
    assert dag.params.get_param("topics").schema["type"] == ["null", "string"]
    assert dag.params.get_param("topics").value is None


def test_the_variable_is_among_the_settings_and_means_all_topics_at_first() -> None:
    settings = read_airflow_settings(PROJECT / "airflow_settings.yaml")
    assert VariableSettings(variable_name=TOPICS_VARIABLE, variable_value=".*") in settings.variables
