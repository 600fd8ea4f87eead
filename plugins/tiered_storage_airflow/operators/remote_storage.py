"""Operators on the RemoteStorageManager: copy and fetch."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

from tiered_storage_airflow.operators.remote_log_operator import NOT_BEGUN, RemoteLogOperator, not_begun_message
from tiered_storage_airflow.operators.spark_groups import SPARK_JOBS, SparkGroupsOperator
from tiered_storage_airflow.runs.scope import required_number
from tiered_storage_airflow.runs.task_context import lease_owner, own_path, task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.copy.tasks import CopyTask
    from tiered_storage.remote_log.manager import RemoteLogManager

COPY_JOB = SPARK_JOBS / "copy_segments.py"


class CopySegmentsOperator(SparkGroupsOperator):
    """Copy a plan's segments with one Spark job, wherever the Spark connection points.

    Every try takes the leases again, allocates new segment ids, writes COPY_SEGMENT_STARTED and its own folder of the
    work area, and renews the leases while Spark works. Workers never touch the metadata store. Returns the batches
    to commit, each with a name, the path of its results, and the path for its commit. If Spark fails or hangs, the
    batches with results are still committed and the commit names the rest; without any result, the try fails.
    Partitions whose copies could not be begun are in a file that each batch names: a later task fails for them.

    :param plan: what PlanCopyOperator returned
    """

    template_fields: Sequence[str] = (*SparkGroupsOperator.template_fields, "plan")

    def __init__(self, *, plan: str | XComArg, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> list[dict[str, str]]:  # type: ignore[override]
        """Begin the copies, let Spark copy the bytes, and sort the results into batches."""
        from tiered_storage.remote_log.copy.tasks import CopyPlan
        from tiered_storage.remote_log.model import Finding

        folder = f"runs/{task_folder(context)}/{context['ti'].try_number}"
        self.ensure_client_mode()
        with self.opened() as remote_log:
            [plan] = remote_log.context.work.read(own_path(context, self.plan), CopyPlan)
            begun = remote_log.begin_copy(plan, lease_owner(context))
            for finding in begun.left:
                self.log.warning("%s is left to the run that holds it: %s", finding.partition, finding.message)
            for finding in begun.failed:
                self.log.error("%s cannot be begun: %s", finding.partition, finding.message)
            if not begun.tasks:
                if begun.failed:
                    raise AirflowException(not_begun_message(begun.failed))
                if plan.segments:
                    self.log.info("nothing is left to copy: other runs copied it or hold its leases")
                else:
                    self.log.info("nothing is due; the leader epochs of %d partitions are recorded", len(plan.lineages))
                return []
            not_begun = f"{folder}/not-begun.jsonl" if begun.failed else ""
            if not_begun:
                remote_log.context.work.write(not_begun, begun.failed, Finding)
            job = remote_log.write_copy_job(folder, begun)

            def has_results() -> bool:
                return any(outcome.has_ended for outcome in job.outcomes())

            with (
                self.watch(remote_log, job.files, job.size_of(begun.tasks)) as watch,
                remote_log.keep_leases(begun.leases, watch.is_moving),
            ):
                ended = self.submit(context, remote_log, job.files, COPY_JOB, watch, has_results)
            self.log.info("in total: %s", watch.progress)
            length = _partitions_a_batch(remote_log, begun.tasks)
            batches = job.write_batches(remote_log.context.work, length, ended)
            return [{**batch, NOT_BEGUN: not_begun} for batch in batches]


def _partitions_a_batch(remote_log: RemoteLogManager, tasks: Sequence[CopyTask]) -> int:
    """Return commit.batch.partitions, or more: Airflow refuses too many batches only after each try's copy."""
    partitions = len({task.metadata.topic_id_partition for task in tasks})
    most_batches: int = conf.getint("core", "max_map_length", fallback=1024)
    return max(remote_log.context.settings.commit_batch_partitions, ceil(partitions / most_batches))


class FetchSegmentOperator(RemoteLogOperator):
    """Fetch batches from the remote tier, from the one that holds `offset` on, into a local file.

    It checks no user's rights, and `path` may name any file of Airflow's worker: never put a form's value into its
    templates.

    :param topic: the topic's name
    :param partition: the partition's number
    :param offset: the offset to begin with
    :param path: the file to write, one remote segment at most
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topic", "partition", "offset", "path")

    def __init__(self, *, topic: str, partition: int, offset: int, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.path = path

    def execute(self, context: Context) -> str:
        """Write the bytes under a temporary name, then rename; return the path."""
        target = Path(self.path)
        temporary = target.with_name(target.name + ".part")
        try:
            with self.opened() as remote_log, temporary.open("wb") as out:
                number, offset = required_number(self.partition, "partition"), required_number(self.offset, "offset")
                for chunk in remote_log.fetch(self.topic, number, offset):
                    out.write(chunk)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        return str(target)
