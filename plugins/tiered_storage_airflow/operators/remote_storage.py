"""Operators on the RemoteStorageManager: copy, fetch, delete, verify; and local retention, which relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from tiered_storage_airflow.hooks.remote_storage import store_environment
from tiered_storage_airflow.run_scope import remote_log_of
from tiered_storage_airflow.run_time import lease_owner, run_folder, run_now

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.copy_job import CopyJob

SPARK_JOBS = Path(__file__).parents[3] / "spark_jobs"
COPY_JOB = SPARK_JOBS / "copy_segments.py"
JOB_STUB = SPARK_JOBS / "job_stub.py"
MOST_ANOMALIES_SHOWN = 20
"""So many fit into a message; the report has them all."""


class CopySegmentsOperator(SparkSubmitOperator):
    """Move a plan's segments with one Spark job, wherever the Spark connection points.

    Every try takes the leases anew, allocates new segment ids, writes COPY_SEGMENT_STARTED and its own folder of the
    work area, and prolongs the leases while Spark works. Workers never touch the metadata store. Returns the batches
    to commit, each with a name and the path of its results. Where Spark fails on the way, what has results goes on and
    the commit names the rest; without any, the try fails.

    :param plan: what PlanCopyOperator returned
    :param conn_id: the Spark connection
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "plan")

    def __init__(self, *, plan: str | XComArg, conn_id: str = "spark_default", **kwargs: Any) -> None:
        super().__init__(conn_id=conn_id, durable=False, **kwargs)
        self.plan: str = plan  # type: ignore[assignment]  # Airflow puts the value in before execute

    def execute(self, context: Context) -> list[dict[str, str]]:  # type: ignore[override]
        """Begin the copies, let Spark move the bytes, sort what came of them into batches."""
        from tiered_storage.library_archive import build_library_archive
        from tiered_storage.remote_log.copy_plan import CopyPlan

        folder = f"runs/{run_folder(context)}/{context['ti'].try_number}"
        with remote_log_of(context) as remote_log, TemporaryDirectory(prefix="remote-log-submit-") as submitted:
            [plan] = remote_log.work.read(self.plan, CopyPlan)
            begun = remote_log.begin_copy(plan, lease_owner(context))
            for finding in begun.left:
                self.log.warning("%s is left to its holder: %s", finding.partition, finding.message)
            if not begun.tasks:
                if plan.segments:
                    self.log.info("nothing is left to copy: other runs have, or hold, all of it")
                else:
                    self.log.info("nothing is due; the leaders of %d partitions are kept", len(plan.lineages))
                return []
            job = remote_log.write_copy_job(folder, begun)
            self.application = str(COPY_JOB)
            self.name = f"copy_segments {folder}"
            self.py_files = f"{build_library_archive(Path(submitted))},{JOB_STUB}"
            self.application_args = ["--work-url", remote_log.work.url, "--job", folder]
            # A lost worker's segments are planned anew, under new ids: two attempts must never write the same object.
            self.conf = {**(self.conf or {}), "spark.task.maxFailures": "1", "spark.speculation": "false"}
            # Not by env_vars: on YARN and Kubernetes the hook makes arguments of them.
            with remote_log.keep_leases(begun.leases), store_environment(remote_log.options):
                self._submit(context, job)
            return job.write_batches(remote_log.settings.commit_batch_partitions)

    def _submit(self, context: Context, job: CopyJob) -> None:
        try:
            super().execute(context)
        # RuntimeError where the hook only tracks a driver. A time-out, too, keeps what is finished: the next run goes
        # on from there, and a backlog of hours gets smaller.
        except (AirflowException, RuntimeError, AirflowTaskTimeout) as error:
            if isinstance(error, AirflowTaskTimeout):
                self.on_kill()
            if all(outcome.finished is None and outcome.failure is None for outcome in job.outcomes()):
                raise
            self.log.warning("Spark failed; what it left results of is committed all the same: %s", error)


class EnforceLocalRetentionOperator(BaseOperator):
    """Remove local segments that are past local retention and safe in the remote tier, where deletion is allowed.

    A run that asset events started looks at the partitions that each event names, with that event's now; any other
    run, and an event that a person created, looks at all, with the wall clock.

    :param topics: a regular expression over whole topic names
    """

    template_fields: Sequence[str] = ("topics",)

    def __init__(self, *, topics: str = ".*", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics

    def execute(self, context: Context) -> None:
        """Plan and trim, event by event; fail at the end for what could not be trimmed."""
        from tiered_storage.remote_log.selection import Selection

        failures: list[str] = []
        dry_run = bool(context["params"].get("dry_run"))
        with remote_log_of(context) as remote_log:
            selection = Selection(self.topics)
            for now, partitions in self._occasions(context):
                plans, unreadable = remote_log.deletions.plan_local_retention(selection, now, partitions)
                for plan in plans:
                    self.log.info(
                        "past local retention: %s before offset %d: %d segments, %d bytes",
                        plan.topic_id_partition, plan.new_local_start, len(plan.segments), plan.size,
                    )  # fmt: skip
                    if plan.held_back:
                        self.log.warning("%s: %s", plan.topic_id_partition, plan.held_back)
                failures.extend(f"{finding.partition}: {finding.message}" for finding in unreadable)
                if dry_run:
                    continue
                report = remote_log.deletions.enforce_local_retention(plans)
                failures.extend(f"{finding.partition}: {finding.message}" for finding in report.failures)
                failures.extend(filter(None, [report.stopped]))
                self.log.info("trimmed %d partitions", len(report.trimmed))
        if failures:
            raise AirflowException("not trimmed: " + "; ".join(failures))

    def _occasions(self, context: Context) -> list[tuple[int, frozenset[str] | None]]:
        from tiered_storage.clock import wall_clock

        events = [event for events in (context.get("triggering_asset_events") or {}).values() for event in events]
        announced = [event.extra for event in events if {"now", "partitions"} <= event.extra.keys()]
        now = run_now(context, wall_clock())
        # Whoever may create an event must not be able to make anything older than it is.
        occasions: list[tuple[int, frozenset[str] | None]] = [
            (min(int(extra["now"]), now), frozenset(extra["partitions"])) for extra in announced
        ]
        if len(announced) < len(events) or not events:
            occasions.append((now, None))
        return occasions


class DeleteSegmentsOperator(BaseOperator):
    """Delete the objects of all segments that are marked, also those that earlier runs could not delete."""

    def execute(self, context: Context) -> None:
        """Delete; fail at the end for what the store would not delete, so that a retry takes it up."""
        with remote_log_of(context) as remote_log:
            report = remote_log.deletions.delete_marked(lease_owner(context))
        for finding in report.left:
            self.log.warning("%s is left to the next run: %s", finding.partition, finding.message)
        self.log.info("deleted %d segments, %d bytes", len(report.deleted), sum(each.size for each in report.deleted))
        if report.stopped:
            raise AirflowFailException(report.stopped)
        if report.failures:
            raise AirflowException(
                "not deleted, the next try takes them up: " + "; ".join(f.message for f in report.failures)
            )


class FetchSegmentOperator(BaseOperator):
    """Fetch the batches that begin with the one holding `offset` from the remote tier into a local file.

    :param topic: the topic's name
    :param partition: the partition's number
    :param offset: the offset to begin with
    :param path: the file to write, one remote segment at most
    """

    template_fields: Sequence[str] = ("topic", "partition", "offset", "path")

    def __init__(self, *, topic: str, partition: int, offset: int, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.path = path

    def execute(self, context: Context) -> str:
        """Write the bytes under a temporary name, then rename; returns the path."""
        target = Path(self.path)
        temporary = target.with_name(target.name + ".part")
        try:
            with remote_log_of(context) as remote_log, temporary.open("wb") as out:
                for chunk in remote_log.fetch(self.topic, int(self.partition), int(self.offset)):
                    out.write(chunk)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        return str(target)


class VerifySegmentsOperator(BaseOperator):
    """Audit the remote log: references, contiguity, sizes, and every checksum where `deep`.

    :param topics: a regular expression over whole topic names
    :param deep: read every byte back
    """

    template_fields: Sequence[str] = ("topics", "deep")

    def __init__(self, *, topics: str = ".*", deep: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.deep = deep

    def execute(self, context: Context) -> str:
        """Audit; returns the report's path and fails, without a retry, for every anomaly."""
        from tiered_storage.remote_log.audit_report import AuditReport
        from tiered_storage.remote_log.selection import Selection

        with remote_log_of(context) as remote_log:
            selection = Selection(self.topics)
            if nothing := remote_log.checks.why_nothing_matches(selection):
                raise AirflowFailException(nothing)
            report = remote_log.checks.audit(selection, deep=str(self.deep).lower() == "true")
            path = f"runs/{run_folder(context)}/audit.jsonl"
            remote_log.work.write(path, [report], AuditReport)
        self.log.info("%d segments, %d objects, %d bytes audited", report.segments, report.objects, report.size)
        for notice in report.notices:
            self.log.warning("%s", notice)
        if report.anomalies:
            shown = report.anomalies[:MOST_ANOMALIES_SHOWN]
            raise AirflowFailException(
                f"{report.anomaly_count} anomalies (report: {path}): "
                + "; ".join(f"{anomaly.kind.value} {anomaly.what}: {anomaly.message}" for anomaly in shown)
                + ("; …" if len(shown) < report.anomaly_count else "")
            )
        return path
