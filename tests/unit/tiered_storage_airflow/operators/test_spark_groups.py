from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from tiered_storage_airflow.embedded.processes import is_running, wait_until
from tiered_storage_airflow.operators.spark_groups import END_WITH_TASK, SparkGroupsOperator

TASK = """
    from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator

    SparkGroupsOperator(task_id="copy", application="job.py")._get_hook().submit("job.py")
"""


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, before all others, that writes its number down and works for minutes."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    began = tmp_path / "began"
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/bash\necho $$ > {began}.part; mv {began}.part {began}; exec sleep 300\n")
    program.chmod(0o755)
    return began


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
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "the task was killed before" in ended.stderr) == (1, True)
    assert not (tmp_path / "begun").exists()


def test_a_spark_submit_that_is_not_there_is_named() -> None:
    command = [sys.executable, "-I", "-S", str(END_WITH_TASK), str(os.getpid()), "no-such-spark-submit"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "no-such-spark-submit: No such file or directory: is it on the PATH?\n",
    )


def test_what_spark_submit_started_ends_with_it(tmp_path: Path) -> None:
    began = tmp_path / "began"
    program = f"sleep 300 & : > {began}; wait"
    with subprocess.Popen(["/bin/bash", "-c", program], stdout=subprocess.PIPE) as submitted:
        while not began.exists():
            assert submitted.poll() is None
        [launcher] = psutil.Process(submitted.pid).children()
        operator = SparkGroupsOperator(task_id="copy")
        operator._hook = SparkSubmitHook()
        operator._hook._submit_sp = submitted

        operator.on_kill()

        assert submitted.stdout is not None
        assert submitted.stdout.read() == b""  # it is closed: nobody holds it any more
        assert wait_until(lambda: not is_running(launcher), 10)


def test_spark_may_clean_up_before_it_is_killed(tmp_path: Path) -> None:
    began, cleaned = tmp_path / "began", tmp_path / "cleaned"
    program = f"trap 'sleep 0.2; : > {cleaned}; exit' TERM; : > {began}; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/bash", "-c", program], stdout=subprocess.PIPE) as submitted:
        assert wait_until(began.exists, 60)
        operator = SparkGroupsOperator(task_id="copy")
        operator._hook = SparkSubmitHook()
        operator._hook._submit_sp = submitted
        operator.on_kill()
    assert cleaned.exists()
    assert submitted.returncode == 0
