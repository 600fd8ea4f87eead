"""Stands in for Spark: the groups of a copy job, one after the other, in this process; or as far as a worker gets."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from tiered_storage.remote_log.audit.job import run_audit_groups
from tiered_storage.remote_log.copy import job as copy_job
from tiered_storage.remote_log.copy.copier import copy_segment
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess, described_job
from tiered_storage.remote_log.tables.export_job import run_export_groups
from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a job was submitted with."""

    name: str
    application: str
    conf: Mapping[str, str]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def folder(self) -> str:
        """The job's folder in the work area."""
        return self.arguments[3]


@dataclass(slots=True)
class SparkInProcess:
    """Runs jobs in place of SparkSubmitOperator.execute.

    `deaths` says of the next jobs after how many segments their worker dies, None for not at all; with `hangs` it hangs
    instead, until it is killed. `meanwhile` is called once, before the next job begins.
    """

    deaths: deque[int | None] = field(default_factory=deque)
    hangs: bool = False
    killed: threading.Event = field(default_factory=threading.Event)
    meanwhile: Callable[[], None] | None = None
    submitted: list[Submitted] = field(default_factory=list)

    def execute(self, operator: SparkSubmitOperator, _context: object) -> None:
        """Run the operator's job. Raises AirflowException, as where spark-submit failed, when its worker dies."""
        assert isinstance(operator, SparkGroupsOperator)
        arguments = tuple(operator.application_args or ())
        environment = {**os.environ, **operator.job_environment}
        job = Submitted(operator.name, str(operator.application), dict(operator.conf or {}), arguments, environment)
        self.submitted.append(job)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        left = self.deaths.popleft() if self.deaths else None
        try:
            self._run(job, left)
        except _WorkerDiedError as error:
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.") from error

    def _run(self, job: Submitted, left: int | None) -> None:
        def copy(*of_segment: object) -> CopyOutcome:
            nonlocal left
            if left == 0:
                if self.hangs:
                    assert self.killed.wait(60)
                raise _WorkerDiedError
            left = None if left is None else left - 1
            return copy_segment(*of_segment)  # type: ignore[arg-type]  # as it was called

        run_groups = _WORKERS[Path(job.application).stem]
        with patch.object(copy_job, "copy_segment", copy):
            _, work_url, _, folder, _, store = job.arguments
            access = JobAccess.parse(work_url, folder, store, job.environment.get(JOB_SECRETS, ""))
            for group in range(described_job(access).groups):
                run_groups(access, [group])


_WORKERS: dict[str, Callable[[JobAccess, Sequence[int]], int]] = {
    "audit_segments": run_audit_groups,
    "copy_segments": run_copy_groups,
    "export_parquet": run_export_groups,
}


class _WorkerDiedError(BaseException):
    """Stands for a killed worker: no code of a worker may catch this."""
