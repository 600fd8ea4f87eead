"""What operators share that run a job in groups with Spark: submit it, watch it, and end it if it hangs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.jobs.groups import JobFailure, JobFolder
    from tiered_storage.remote_log.jobs.progress import JobSize, JobWatch
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.progress import Progress


def _spark_jobs() -> Path:
    """Return the folder of the jobs: in the installed package, or else the project's own."""
    installed = Path(__file__).parents[1] / "spark_jobs"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "spark_jobs"


SPARK_JOBS = _spark_jobs()
JOB_STUB = SPARK_JOBS / "job_stub.py"
END_WITH_TASK = SPARK_JOBS / "end_with_task.py"

QUIET = {"spark.log.level": "WARN", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
"""Defaults for `conf`: Spark logs warnings only, and shows no web page and no progress bars."""

SET_BY_THE_JOB = ("application", "application_args", "durable", "name", "py_files")
"""The arguments of SparkSubmitOperator that a DAG file may not give."""

ONE_TRY = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
"""`conf` may not change this: two attempts must never write the same object. The next run copies under new ids."""

END_SECONDS = 3.0
"""How long (s) Spark may take to end its workers and remove its temporary files before the task kills it.

Airflow's supervisor kills the task 5 s after SIGTERM: Spark and its workers must be gone before.
"""


class SparkGroupsOperator(RemoteLogOperator, SparkSubmitOperator):
    """Base of operators that run a job in groups with Spark, wherever the Spark connection points.

    Spark's workers never touch the metadata store. The task logs the job's progress every half minute. It ends a job
    that moves no byte for copy.stuck.after.ms. Spark ends with the task: a task that Airflow ends kills it after
    END_SECONDS, and one that is killed leaves it SIGTERM (on Linux). A task that is ending begins no further job.

    Its parameters are those of RemoteLogOperator and of SparkSubmitOperator, such as `conn_id`, `executor_memory` and
    `conf`. Raises ValueError for those SET_BY_THE_JOB, and for a `conf` that contradicts ONE_TRY.
    """

    # Spark's provider has nothing public for what comes before spark-submit, for the process that it started, and for a
    # second job of a task. Its private parts in use are these, and no others: _get_hook and _hook of the operator,
    # _get_spark_binary_path and _submit_sp of the hook.

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, *RemoteLogOperator.template_fields)

    def __init__(
        self,
        *,
        conn_id: str = SparkSubmitHook.default_conn_name,
        deploy_mode: str | None = None,
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        # A retry starts again, under new segment ids: it must not join the first try's job.
        super().__init__(conn_id=conn_id, deploy_mode=deploy_mode, durable=False, **kwargs)
        defaults = signature(SparkSubmitOperator).parameters
        of_spark = (name for name in SET_BY_THE_JOB if name != "durable")
        given = [name for name in of_spark if getattr(self, name) != defaults[name].default]
        given += ["durable"] if durable else []
        # What comes from another task has no names yet.
        conf = self.conf if isinstance(self.conf, Mapping) else {}
        given += [name for name, value in ONE_TRY.items() if str(conf.get(name, value)).lower() != value]
        if given:
            raise ValueError(
                f"{type(self).__name__} {self.task_id} sets {', '.join(given)} itself: remove what the DAG file or its "
                "default_args give"
            )
        self.spark_conn_id = conn_id
        self.job_environment: Mapping[str, str] = {}
        self.is_ending = False

    def ensure_client_mode(self) -> None:
        """Raise AirflowFailException unless Spark's driver runs in this task, where it gets the job's secrets.

        Call it before anything is begun. Also raises it if another connection than the default does not exist.
        """
        from tiered_storage_airflow.hooks.connections import find_connection

        connection = find_connection(self.spark_conn_id, SparkSubmitHook.default_conn_name, None)
        of_connection = None if connection is None else connection.extra_dejson.get("deploy-mode")
        in_conf = (self.conf or {}).get("spark.submit.deployMode")
        mode = self._deploy_mode or of_connection or in_conf or "client"
        if mode != "client":
            raise AirflowFailException(
                f"nothing was begun: the task or its connection {self.spark_conn_id} asks for deploy mode {mode}: set "
                "client, since Spark's driver gets the job's secrets from the task"
            )
        # Otherwise spark-defaults.conf, or the task's properties_file, might ask for another one.
        self.conf = {**(self.conf or {}), "spark.submit.deployMode": mode}

    def watch(self, remote_log: RemoteLogManager, job: JobFolder, size: JobSize) -> JobWatch:
        """Return the watch over the running job, for a `with`."""
        from tiered_storage.remote_log.jobs.progress import JobWatch

        def report(progress: Progress) -> None:
            self.log.info("so far: %s", progress)

        stuck_after_ms = remote_log.context.settings.copy_stuck_after_ms
        return JobWatch(job, size, stuck_after_ms=stuck_after_ms, report=report, on_stuck=self._end_spark)

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        binary = hook._get_spark_binary_path()
        command = [sys.executable, "-I", "-S", str(END_WITH_TASK), str(os.getpid()), *binary]
        hook._get_spark_binary_path = lambda: command  # type: ignore[method-assign]
        start = hook.submit

        def submit(application: str = "", **of_process: Any) -> str | None:
            # Not env_vars: the hook turns them into arguments on YARN and Kubernetes, and all users can read those.
            with _in_memory(json.dumps(self.job_environment)) as variables:
                return start(application, stdin=variables, **of_process)

        hook.submit = submit  # type: ignore[method-assign]
        return hook

    def on_kill(self) -> None:
        """End Spark, and begin no further job: Airflow calls this while `execute` runs, which continues afterwards."""
        self.is_ending = True
        self._end_spark()

    def _end_spark(self) -> None:
        """End Spark and what spark-submit started: a child that hangs keeps the output open, and so the task alive."""
        submitted = None if self._hook is None else self._hook._submit_sp
        started: list[psutil.Process] = []
        if submitted is not None:
            with suppress(psutil.NoSuchProcess):
                spark = psutil.Process(submitted.pid)
                started = spark.children(recursive=True)
                spark.terminate()
                _await_end(spark)
        super().on_kill()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def submit(
        self,
        context: Context,
        remote_log: RemoteLogManager,
        job: JobFolder,
        application: Path,
        watch: JobWatch,
        has_results: Callable[[], bool],
    ) -> JobFailure | None:
        """Run `application` with Spark for the job's groups; return why it was given up, None if it was not.

        If Spark fails or the time is up, the finished groups still count, so that a backlog of hours gets smaller.
        Raises what Spark's operator raises, and CopyStuckError, if no group has a result; AirflowException if the task
        is ending.
        """
        from tiered_storage.errors import CopyStuckError
        from tiered_storage.remote_log.jobs.library_archive import build_library_archive, submit_folder

        if self.is_ending:
            raise AirflowException("no Spark job was begun: the task is ending, by SIGTERM or its execution_timeout")
        self.ensure_client_mode()
        access = remote_log.context.access(job)
        self.job_environment = access.environment
        with submit_folder() as submitted:
            self.application = str(application)
            self.name = f"{application.stem} {job.folder}"
            self.py_files = f"{build_library_archive(submitted)},{JOB_STUB}"
            self.application_args = access.arguments
            self.conf = {**QUIET, **(self.conf or {}), **ONE_TRY}
            # A hook keeps the arguments of its first job, and a task may submit several.
            self._hook = None
            try:
                super().execute(context)
            # The hook raises RuntimeError if it only tracks a driver.
            except (AirflowException, RuntimeError, AirflowTaskTimeout) as error:
                if isinstance(error, AirflowTaskTimeout):
                    self.on_kill()
                if not has_results():
                    if watch.stuck is not None:
                        raise CopyStuckError(watch.stuck.message) from error
                    if not isinstance(error, AirflowTaskTimeout):
                        self.log.warning(
                            "Spark wrote no result. Its own log lines are above; if spark-submit itself failed, check "
                            "Airflow's connection %s (its master, its spark-binary), and that Java is installed",
                            self.spark_conn_id,
                        )
                    raise
                self.log.warning("Spark failed, and the groups that it finished still count: %s", error)
        return watch.stuck


def _in_memory(text: str) -> IO[bytes]:
    """Return a file with `text`, at its beginning; it has no name, and on Linux no place on a disk."""
    in_memory = sys.platform == "linux"
    file: IO[bytes] = os.fdopen(os.memfd_create("job"), "w+b") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    return file


def _await_end(process: psutil.Process) -> None:
    """Wait until a child has ended, at most END_SECONDS, without reaping it: its parent reads the exit code."""
    end = time.monotonic() + END_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.05)
