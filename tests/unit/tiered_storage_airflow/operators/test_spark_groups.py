from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from tiered_storage_airflow.embedded.processes import is_running
from tiered_storage_airflow.embedded.waiting import wait_until
from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator


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
