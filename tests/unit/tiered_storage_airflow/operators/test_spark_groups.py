from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.supervisor import WatchedSubprocess

from support.tiered_site import TieredSite
from tiered_storage_airflow.embedded.processes import is_running, wait_until
from tiered_storage_airflow.operators import spark_groups
from tiered_storage_airflow.operators.remote_log_metadata import PlanCopyOperator
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator
from tiered_storage_airflow.operators.spark_groups import (
    END_SECONDS,
    END_WITH_TASK,
    SET_BY_THE_JOB,
    SparkGroupsOperator,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

TASK = """
    from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator

    operator = SparkGroupsOperator(task_id="copy")
    operator.application = "job.py"
    operator.execute({})
"""
SECRETS = {"A_SECRET": "x" * 100_000}
"""More than a pipe takes at once."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose spark-submit, once it is there, comes before all others."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def write_spark_submit(programs: Path, script: str) -> Path:
    """Write one that runs `script` after it wrote its number down; return the file that has the number."""
    began, program = programs / "began", programs / "spark-submit"
    program.write_text(f"#!/bin/bash\n{script.format(began=f'echo $$ > {began}.part; mv {began}.part {began}')}\n")
    program.chmod(0o755)
    return began


@pytest.fixture
def spark_submit(programs: Path) -> Path:
    """One that works for minutes."""
    return write_spark_submit(programs, "{began}; exec sleep 300")


@pytest.fixture
def operator() -> SparkGroupsOperator:
    """One that submits a job, as its subclasses do."""
    operator = SparkGroupsOperator(task_id="copy")
    operator.application = "job.py"
    return operator


@contextmanager
def running(operator: SparkGroupsOperator, began: Path) -> Iterator[tuple[psutil.Process, Future[None]]]:
    """Run the operator on a thread; gives the spark-submit that it began, and the operator's outcome."""
    with ThreadPoolExecutor(1) as pool:
        executed = pool.submit(operator.execute, cast("Context", {}))
        try:
            assert wait_until(lambda: began.exists() or executed.done(), 60)
            yield psutil.Process(int(began.read_text())), executed
        finally:
            operator.on_kill()


def started_by(task: subprocess.Popen[bytes], began: Path) -> psutil.Process:
    assert wait_until(lambda: began.exists() or task.poll() is not None, 60)
    return psutil.Process(int(began.read_text()))


@pytest.fixture
def task(spark_submit: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that submits a job as a task does."""
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(TASK)], stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def test_spark_ends_with_a_task_that_was_killed(task: subprocess.Popen[bytes], spark_submit: Path) -> None:
    spark = started_by(task, spark_submit)
    assert spark.ppid() == task.pid
    task.kill()
    assert wait_until(lambda: not is_running(spark), 10)


def test_spark_does_not_begin_for_a_task_that_is_gone(tmp_path: Path) -> None:
    someone_elses_parent = 1
    command = [
        sys.executable,
        "-I",
        "-S",
        str(END_WITH_TASK),
        str(someone_elses_parent),
        "touch",
        str(tmp_path / "begun"),
    ]
    ended = subprocess.run(command, input="{}", capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "killed" in ended.stderr
    assert not (tmp_path / "begun").exists()


def test_a_spark_submit_that_is_not_there_is_named() -> None:
    command = [sys.executable, "-I", "-S", str(END_WITH_TASK), str(os.getpid()), "no-such-spark-submit"]
    ended = subprocess.run(command, input="{}", capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.fullmatch(r"no-such-spark-submit: .*\bPATH\b.*\n", ended.stderr)


def test_child_processes_of_spark_submit_end_with_it(programs: Path, operator: SparkGroupsOperator) -> None:
    began = write_spark_submit(programs, "sleep 300 & {began}; wait")
    with running(operator, began) as (spark, executed):
        [launcher] = spark.children()
        operator.on_kill()
        assert wait_until(lambda: not is_running(launcher), 10)
        with pytest.raises(AirflowException, match="spark-submit"):  # it was killed, and nobody holds its output open
            executed.result(60)


def test_spark_is_killed_before_airflow_kills_the_task() -> None:
    """Else nothing would end Spark's workers, whose process groups are their own."""
    until_sigkill = inspect.signature(WatchedSubprocess.kill).parameters["escalation_delay"].default
    assert until_sigkill > END_SECONDS + 1


def test_a_spark_that_hangs_while_it_ends_is_killed_with_its_workers(
    programs: Path, operator: SparkGroupsOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_groups, "END_SECONDS", 0.2)
    began = write_spark_submit(programs, "trap '' TERM; setsid sleep 300 & {began}; while :; do wait; done")
    with running(operator, began) as (spark, executed):
        [worker] = [child for child in spark.children() if child.name() == "sleep" and "300" in child.cmdline()]
        operator.on_kill()
        assert wait_until(lambda: not is_running(spark) and not is_running(worker), 10)
        with pytest.raises(AirflowException, match="spark-submit"):
            executed.result(60)


def test_spark_may_clean_up_before_it_is_killed(programs: Path, operator: SparkGroupsOperator) -> None:
    cleaned = programs / "cleaned"
    script = f"trap 'sleep 0.2; : > {cleaned}; exit' TERM; {{began}}; while :; do sleep 0.05; done"
    with running(operator, write_spark_submit(programs, script)) as (_, executed):
        operator.on_kill()
        assert cleaned.exists()
        executed.result(60)  # it ended by itself, with exit code 0


@pytest.mark.parametrize("env_vars", [None, {"OF_THE_DAG": "1"}])
def test_spark_alone_has_the_secrets_in_its_environment(
    programs: Path, operator: SparkGroupsOperator, env_vars: dict[str, str] | None
) -> None:
    seen = programs / "seen"
    write_spark_submit(programs, f"env > {seen}; {{began}}")
    operator.env_vars, operator.job_environment = env_vars, SECRETS
    operator.execute(cast("Context", {}))
    expected = {f"{name}={value}" for name, value in {**SECRETS, **(env_vars or {})}.items()}
    assert expected <= set(seen.read_text().splitlines())
    assert SECRETS.keys().isdisjoint(os.environ)


@pytest.mark.parametrize("name", SET_BY_THE_JOB)
@pytest.mark.parametrize("is_default", [True, False])
def test_what_the_job_sets_is_refused_in_a_dag_file(name: str, is_default: bool) -> None:
    given = {name: ["a value"] if name == "application_args" else "a value"}
    with pytest.raises(ValueError, match=f"SparkGroupsOperator copy sets {name} "), DAG("trial", schedule=None):
        SparkGroupsOperator(task_id="copy", **({"default_args": given} if is_default else given))


@pytest.mark.parametrize(("name", "value"), [("spark.task.maxFailures", "4"), ("spark.speculation", True)])
def test_a_second_attempt_of_a_spark_task_is_refused_in_a_dag_file(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"SparkGroupsOperator copy sets {name} "), DAG("trial", schedule=None):
        SparkGroupsOperator(task_id="copy", conf={name: value})


def test_conf_may_come_from_another_task_or_say_what_holds_anyway() -> None:
    with DAG("trial", schedule=None):
        found = EmptyOperator(task_id="found")
        SparkGroupsOperator(task_id="copy", conf=XComArg(found))
        SparkGroupsOperator(task_id="again", conf={"spark.speculation": False})


def context() -> Context:
    dag_run = SimpleNamespace(dag_id="trial", run_id="by hand", run_type="manual")
    task = SimpleNamespace(try_number=1, task_id="task", map_index=-1, xcom_push=lambda **_: None)
    return cast("Context", {"dag_run": dag_run, "params": {}, "ti": task})


def spark_connection(monkeypatch: pytest.MonkeyPatch, conn_id: str, mode: str) -> None:
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": mode}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))


@pytest.mark.parametrize(
    "given",
    [{"conn_id": "elsewhere"}, {"deploy_mode": "cluster"}, {"conf": {"spark.submit.deployMode": "cluster"}}],
    ids=["connection", "argument", "conf"],
)
def test_no_copy_is_begun_for_a_driver_that_would_run_elsewhere(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    site.append_segment("orders-0")
    spark_connection(monkeypatch, "elsewhere", "cluster")
    plan = PlanCopyOperator(task_id="plan").execute(context())
    copying = CopySegmentsOperator(task_id="copy", plan=plan, **given)
    with pytest.raises(AirflowFailException, match="cluster"):
        copying.execute(context())
    assert len(site.segments("orders-0")) == 4


def test_a_deploy_mode_of_the_task_goes_before_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_connection(monkeypatch, "elsewhere", "cluster")
    SparkGroupsOperator(task_id="copy", conn_id="elsewhere", deploy_mode="client").ensure_client_mode()


def test_a_submitted_job_asks_for_client_mode_itself() -> None:
    """Spark's own files may ask for another one."""
    operator = SparkGroupsOperator(task_id="copy", properties_file="spark.properties")
    operator.ensure_client_mode()
    command = operator._get_hook()._build_spark_submit_command("job.py")
    assert "spark.submit.deployMode=client" in command


def test_a_mistyped_spark_connection_is_named() -> None:
    with pytest.raises(AirflowFailException, match="spark_defualt"):
        SparkGroupsOperator(task_id="copy", conn_id="spark_defualt").ensure_client_mode()
