"""The DAG files: what each has to have, and that parsing one costs next to nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dags.airflow_runs import CANARY, AirflowHome
from support.airflow_home import CONFIGURATION, PROJECT
from tiered_storage_airflow.embedded.settings_file import VariableSettings, read_airflow_settings
from tiered_storage_airflow.forms.fields import TOPICS, TOPICS_VARIABLE
from tiered_storage_airflow.links import ReportLink

FILES = sorted((PROJECT / "dags").glob("*.py"))
FILES_AND_RECIPE = [*FILES, PROJECT / "tests" / "recipes" / "dag.py"]
OVER_PARTITIONS = (
    "audit_remote_log",
    "copy_segments",
    "enforce_local_retention",
    "expire_remote_segments",
    "repair_remote_log",
)
ONLY_BY_HAND = (
    "delete_records",
    "delete_topic",
    "plan_deletions",
    "repair_remote_log",
    "restore_topic",
    "stop_deletions",
    "undelete",
)
READING_MUCH = (
    ("audit_remote_log", "audit"),
    ("export_topic", "export"),
    ("repair_remote_log", "plan"),
    ("restore_topic", "restore"),
)
COPYING = (("copy_segments", "copy"), ("repair_remote_log", "copy"))
DELETING = (
    ("delete_records", "mark_deleted"),
    ("delete_topic", "mark_deleted"),
    ("enforce_local_retention", "trim"),
    ("expire_remote_segments", "delete"),
    ("expire_remote_segments", "mark_deleted"),
    ("repair_remote_log", "finish"),
)
SWITCH = ("stop_deletions", "switch")
ONLY_SHOWN_UNLESS_ASKED = ("delete_records", "delete_topic", "repair_remote_log", "undelete")
SCREEN = 72
STATED_BY_A_DAG = {
    "schedule", "catchup", "is_paused_upon_creation", "max_active_runs", "dagrun_timeout", "tags", "default_args",
    "params", "doc_md",
}  # fmt: skip
STATED_OF_A_SPARK_JOB = {"task_id", "conn_id", "pool", "execution_timeout"}
DEFAULTS_OF_TASKS = ("DEFAULT_ARGS", "{'pool': 'remote_log_metadata'}")
SPARK_JOBS = ("CopySegmentsOperator", "ExportTopicOperator", "VerifySegmentsOperator")
HEAVY = ("numba", "numpy", "pandas", "pyarrow", "obstore", "pyspark")
LIGHT_OF_THE_LIBRARY = [
    "tiered_storage",
    "tiered_storage.settings",
    "tiered_storage.settings.properties",
    "tiered_storage.settings.properties.cluster_files",
]
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag

bag = DagBag(dag_folder=sys.argv[1])
found = {
    "errors": bag.import_errors,
    "dags": sorted(bag.dags),
    "modules": sorted(sys.modules),
}
print(json.dumps(found))
"""


pytestmark = pytest.mark.usefixtures("with_canary")


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process that parses the DAG files, and nothing else, sees of them."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "airflow.cfg").write_text(CONFIGURATION)
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(PROJECT / "dags")],
        env={**os.environ, "AIRFLOW_HOME": str(home), **CANARY},
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
    of_the_library = [name for name in parsed["modules"] if name.partition(".")[0] == "tiered_storage"]
    assert of_the_library == LIGHT_OF_THE_LIBRARY


@pytest.mark.parametrize("path", FILES_AND_RECIPE, ids=lambda path: path.stem)
def test_a_dag_file_fits_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= SCREEN


@pytest.mark.parametrize("path", FILES_AND_RECIPE, ids=lambda path: path.stem)
def test_a_dag_file_states_its_arguments(path: Path) -> None:
    parsed = ast.parse(path.read_text())
    [function] = [node for node in parsed.body if isinstance(node, ast.FunctionDef)]
    [dag] = [node for node in function.decorator_list if isinstance(node, ast.Call)]
    assert {keyword.arg for keyword in dag.keywords} - {"start_date", "in_copy_queues", "is_wanted"} == STATED_BY_A_DAG
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert [keyword.arg for call in calls for keyword in call.keywords if keyword.arg is None] == []
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in SPARK_JOBS:
            assert {keyword.arg for keyword in call.keywords} >= STATED_OF_A_SPARK_JOB
    [defaults] = [keyword.value for keyword in dag.keywords if keyword.arg == "default_args"]
    assert ast.unparse(defaults).replace("{**DEFAULT_ARGS, ", "{") in DEFAULTS_OF_TASKS


@pytest.mark.parametrize("path", FILES_AND_RECIPE, ids=lambda path: path.stem)
def test_a_dag_file_shows_what_each_operator_gets_of_the_form(path: Path) -> None:
    parsed = ast.parse(path.read_text())
    [function] = [node for node in parsed.body if isinstance(node, ast.FunctionDef)]
    given = [
        (name, {keyword.arg for keyword in call.keywords})
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and (name := ast.unparse(call.func).removesuffix(".partial")).endswith("Operator")
    ]
    assert given
    modules = [importlib.import_module(str(node.module)) for node in parsed.body if isinstance(node, ast.ImportFrom)]
    for name, arguments in given:
        [operator] = {getattr(module, name) for module in modules if hasattr(module, name)}
        of_form = inspect.signature(operator).parameters.keys() & {"topics", "partitions", "must_match", "max_segments"}
        asks_first = {"dry_run"} if "dry_run_param" in path.read_text() else set()
        assert arguments >= of_form | asks_first | {"settings"}, name


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_a_dag_says_what_it_does_and_only_stops_run_beside_each_other(airflow: AirflowHome, dag_id: str) -> None:
    dag = airflow.dag(dag_id)
    assert dag.doc_md
    assert len(dag.doc_md.splitlines()) >= 3
    assert "tiered-storage" in dag.tags
    assert len(dag.tags) == 2
    assert (dag.max_active_runs, dag.catchup) == (100 if dag_id == "stop_deletions" else 1, False)
    for name in dag.params:
        assert dag.params.get_param(name).schema["title"], name
    assert "settings" in dag.params


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_every_task_ends_at_some_time_and_is_tried_again_after_longer_and_longer_pauses(
    airflow: AirflowHome, dag_id: str
) -> None:
    for task in airflow.dag(dag_id).tasks:
        assert task.execution_timeout is not None, task.task_id
        assert task.execution_timeout <= timedelta(hours=6), task.task_id
        assert task.retries == 3, task.task_id
        assert task.retry_exponential_backoff == 2.0, task.task_id
        assert task.max_retry_delay == timedelta(minutes=10), task.task_id


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_a_run_that_waits_for_what_never_comes_ends_and_no_other_run_is_cut_off(
    airflow: AirflowHome, dag_id: str
) -> None:
    dag = airflow.dag(dag_id)
    tasks: list[Any] = dag.tasks
    within_its_limits = sum(
        ((task.retries + 1) * task.execution_timeout + task.retries * task.max_retry_delay for task in tasks),
        timedelta(),
    )
    assert dag.dagrun_timeout is not None
    assert within_its_limits < dag.dagrun_timeout <= timedelta(days=2)


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_instances_have_names_and_every_task_leads_to_the_runs_report(airflow: AirflowHome, dag_id: str) -> None:
    for task in airflow.dag(dag_id).tasks:
        if task.is_mapped:
            assert task.map_index_template, task.task_id
        assert any(isinstance(link, ReportLink) for link in task.operator_extra_links), task.task_id


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_no_template_reads_an_xcom_for_which_airflow_draws_no_edge(airflow: AirflowHome, dag_id: str) -> None:
    for task in airflow.dag(dag_id).tasks:
        values = [getattr(task, name, None) for name in task.template_fields]
        assert [value for value in values if isinstance(value, str) and "xcom" in value] == [], task.task_id


@pytest.mark.parametrize(
    ("dag_id", "task_id"),
    [("copy_segments", "announce"), ("copy_segments", "all_committed"), ("repair_remote_log", "finish")],
)
def test_what_reads_the_outcome_of_a_copy_comes_after_it(airflow: AirflowHome, dag_id: str, task_id: str) -> None:
    assert "copy" in airflow.dag(dag_id).get_task(task_id).upstream_task_ids


def test_every_task_but_the_switch_takes_a_slot_of_a_pool_of_ours(airflow: AirflowHome) -> None:
    tasks = {(path.stem, task.task_id): task for path in FILES for task in airflow.dag(path.stem).tasks}
    expected = dict.fromkeys(tasks, "remote_log_metadata")
    expected |= dict.fromkeys(READING_MUCH, "remote_log_reader")
    expected |= dict.fromkeys(COPYING, "remote_log_copier")
    expected |= dict.fromkeys(DELETING, "remote_log_deleter")
    expected[SWITCH] = "default_pool"
    assert {key: task.pool for key, task in tasks.items()} == expected
    # It must never wait for the runs that it stops.
    assert tasks[SWITCH].priority_weight > max(task.priority_weight for key, task in tasks.items() if key != SWITCH)
    settings = read_airflow_settings(PROJECT / "airflow_settings.yaml")
    assert {pool.pool_name for pool in settings.pools} == set(expected.values()) - {"default_pool"}


@pytest.mark.parametrize("dag_id", [path.stem for path in FILES])
def test_a_manual_run_begins_at_once_and_no_schedule_is_on_by_default(airflow: AirflowHome, dag_id: str) -> None:
    dag = airflow.dag(dag_id)
    assert (dag.schedule is None) == (dag_id in ONLY_BY_HAND)
    assert dag.is_paused_upon_creation is (dag_id not in ONLY_BY_HAND)


@pytest.mark.parametrize("dag_id", OVER_PARTITIONS)
def test_topics_left_empty_are_those_of_the_variable(airflow: AirflowHome, dag_id: str) -> None:
    dag = airflow.dag(dag_id)
    choosing = [task for task in dag.tasks if "topics" in task.template_fields]
    assert choosing
    assert {vars(task)["topics"] for task in choosing} == {TOPICS}
    assert dag.params.get_param("topics").schema["type"] == ["null", "string"]
    assert dag.params.get_param("topics").value is None
    assert dag.params.get_param("partitions").value is None


@pytest.mark.parametrize("dag_id", ONLY_SHOWN_UNLESS_ASKED)
def test_dags_that_delete_or_repair_by_hand_default_to_a_dry_run_and_have_no_schedule(
    airflow: AirflowHome, dag_id: str
) -> None:
    dag = airflow.dag(dag_id)
    assert dag.params.get_param("dry_run").value is True
    assert dag.schedule is None


def test_the_variable_is_among_the_settings_and_means_all_topics_at_first() -> None:
    settings = read_airflow_settings(PROJECT / "airflow_settings.yaml")
    assert VariableSettings(variable_name=TOPICS_VARIABLE, variable_value=".*") in settings.variables


def test_the_gateway_is_only_checked_where_it_has_a_canary_topic(
    airflow: AirflowHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert airflow.dag("gateway_health").task_ids == ["check"]
    for name in CANARY:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(tmp_path / "settings.yaml"))
    with pytest.raises(KeyError):
        airflow.dag("gateway_health")
    (tmp_path / "settings.yaml").write_text("gateway.canary.topic: canary\n")
    assert airflow.dag("gateway_health").task_ids == ["check"]
