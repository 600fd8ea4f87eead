"""Operators that bring a topic back from the store: plan, restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import SkipMixin
from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import keep_done, summarize

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
    from tiered_storage.remote_log.restore.request import RestorePlan


class _RestoringOperator(RemoteLogOperator):
    """What both have: the topic, or the part of it, that is meant. Numbers and times may be text; empty: no limit."""

    template_fields: Sequence[str] = (
        *RemoteLogOperator.template_fields,
        "topic", "topic_id", "partitions", "from_offset", "to_offset", "from_time", "to_time", "allow_gaps",
        "to_directory", "to_cluster",
    )  # fmt: skip

    def __init__(
        self,
        *,
        topic: str,
        topic_id: str = "",
        partitions: str | None = None,
        from_offset: int | str | None = None,
        to_offset: int | str | None = None,
        from_time: str | None = None,
        to_time: str | None = None,
        allow_gaps: bool | str = False,
        to_directory: str = "",
        to_cluster: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.from_offset = from_offset
        self.to_offset = to_offset
        self.from_time = from_time
        self.to_time = to_time
        self.allow_gaps = allow_gaps
        self.to_directory = to_directory
        self.to_cluster = to_cluster

    def _ensure_one_target(self) -> None:
        """Raise AirflowFailException unless exactly one place to restore to is given."""
        if bool(self.to_directory) == bool(self.to_cluster):
            given = f"not both {self.to_directory} and {self.to_cluster}" if self.to_directory else "neither is given"
            raise AirflowFailException(f"say where to restore to: a log directory, or a cluster's host:port; {given}")

    def _plan(self, remote_log: RemoteLogManager) -> RestorePlan:
        """Plan, and tell what a person should know. Fails for a gap that is not allowed."""
        from tiered_storage.remote_log.restore.request import RestoreRequest, parse_time
        from tiered_storage.remote_log.selection import parse_partitions

        request = RestoreRequest(
            self.topic,
            self.topic_id or None,
            parse_partitions(self.partitions or None),
            _offset(self.from_offset, "from_offset"),
            _offset(self.to_offset, "to_offset"),
            parse_time("from_time", self.from_time),
            parse_time("to_time", self.to_time),
        )
        plan = remote_log.restores.plan(request)
        for finding in (*plan.notices, *plan.gaps):
            self.log.warning("%s", finding)
        plan.ensure_possible(allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"))
        return plan


class PlanRestoreOperator(_RestoringOperator, SkipMixin):
    """Show what of a topic the store would give back; a dry run skips everything behind it.

    :param topic: the topic's name
    :param topic_id: which life of it, where the store has several
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param from_offset: the first offset (inclusive); `to_offset` the end (exclusive)
    :param from_time: the earliest time of records (ISO 8601, or ms); `to_time` the end (exclusive)
    :param allow_gaps: restore what is there though offsets are missing between
    :param to_directory: where RestoreOperator is to restore to; or `to_cluster`
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*_RestoringOperator.template_fields, "is_dry_run")

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> None:
        """Look at the metadata, and for a range at a few indexes. Fails where it is not said where to restore to."""
        self._ensure_one_target()
        only_show = is_switched_on(self.is_dry_run, "dry_run")
        with self.opened() as remote_log:
            plan = self._plan(remote_log)
            for each in plan.partitions:
                self.log.info(
                    "to restore: %s, offsets %d to %d: %d segments, %d bytes",
                    each.topic_id_partition, each.log_start_offset, each.log_end_offset - 1, len(each.segments),
                    each.size,
                )  # fmt: skip
            summarize(
                remote_log,
                context,
                self.log,
                partitions=len(plan.partitions),
                segments=sum(len(each.segments) for each in plan.partitions),
                bytes=plan.size,
                gaps=len(plan.gaps),
            )
        if only_show:
            self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))


class RestoreOperator(_RestoringOperator):
    """Bring a topic back, as PlanRestoreOperator shows it: into a log directory, or into a running cluster.

    :param to_directory: the log directory of a broker that is stopped, on this worker's machine
    :param to_cluster: host:port of a running cluster, instead
    :param as_topic: the name there; empty: the same
    :param as_topic_id: the topic's id in the directory's cluster; empty: what is found there
    :param append: the cluster's topic may hold records already
    :param offset_map: the file of old and new offsets; empty: restores/{topic}-offset-map.jsonl in state.directory
    :param client_properties: a file of librdkafka's properties for the cluster, on this worker's machine
    :param validation: manifest, sizes or records
    :param workers: partitions that are restored into a directory at once
    """

    template_fields: Sequence[str] = (
        *_RestoringOperator.template_fields,
        "as_topic", "as_topic_id", "append", "offset_map", "client_properties",
        "validation",
    )  # fmt: skip

    def __init__(
        self,
        *,
        as_topic: str = "",
        as_topic_id: str = "",
        append: bool | str = False,
        offset_map: str = "",
        client_properties: str = "",
        validation: str = "sizes",
        workers: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.as_topic = as_topic
        self.as_topic_id = as_topic_id
        self.append = append
        self.offset_map = offset_map
        self.client_properties = client_properties
        self.validation = validation
        self.workers = workers

    def execute(self, context: Context) -> None:
        """Restore; a retry goes on where this try ended."""
        self._ensure_one_target()
        with self.opened() as remote_log:
            plan = self._plan(remote_log)
            if self.to_directory:
                self._to_directory(remote_log, plan, context)
            else:
                self._to_cluster(remote_log, plan, context)

    def _to_directory(self, remote_log: RemoteLogManager, plan: RestorePlan, context: Context) -> None:
        from pathlib import Path

        from tiered_storage.remote_log.restore.directory import DirectoryTarget, RestoredDirectory
        from tiered_storage.remote_log.restore.validation import Validation

        target = DirectoryTarget(Path(self.to_directory), self.as_topic or None, self.as_topic_id or None)
        progress = self._progress(plan)
        done = remote_log.restores.to_directory(
            plan,
            target,
            validation=Validation(self.validation),
            allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"),
            workers=self.workers,
            on_moved=progress,
        )
        progress.conclude()
        keep_done(remote_log, context, "restored", done, RestoredDirectory)
        for each in done:
            self.log.info(
                "restored %s/%s: offsets %d to %d",
                self.to_directory, each.partition, each.log_start_offset, each.log_end_offset - 1,
            )  # fmt: skip
        summarize(
            remote_log, context, self.log, partitions=len(done), segments=sum(each.segments for each in done),
            bytes=sum(each.size for each in done), into=self.to_directory,
        )  # fmt: skip

    def _to_cluster(self, remote_log: RemoteLogManager, plan: RestorePlan, context: Context) -> None:
        from pathlib import Path

        from tiered_storage.remote_log.restore.cluster import ClusterTarget, RestoredRecords
        from tiered_storage.remote_log.restore.validation import Validation

        offset_map = self._offset_map(remote_log)
        target = ClusterTarget(
            self.to_cluster,
            offset_map,
            self.as_topic or None,
            Path(self.client_properties) if self.client_properties else None,
            append=is_switched_on(self.append, "append"),
        )
        progress = self._progress(plan)
        report = remote_log.restores.to_cluster(
            plan,
            target,
            validation=Validation(self.validation),
            allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"),
            on_moved=progress,
        )
        progress.conclude()
        keep_done(remote_log, context, "restored", report.partitions, RestoredRecords)
        for notice in report.notices:
            self.log.warning("%s", notice)
        for each in report.partitions:
            self.log.info(
                "restored %s: %d records sent, %d found, now offsets %d to %d",
                each.partition, each.sent, each.found, each.first_offset, each.end_offset - 1,
            )  # fmt: skip
        summarize(
            remote_log, context, self.log, partitions=len(report.partitions),
            records=sum(each.sent + each.found for each in report.partitions), into=self.to_cluster,
            offset_map=str(offset_map),
        )  # fmt: skip

    def _offset_map(self, remote_log: RemoteLogManager) -> Path:
        from pathlib import Path

        if self.offset_map:
            return Path(self.offset_map)
        return remote_log.settings.state_directory / "restores" / f"{self.as_topic or self.topic}-offset-map.jsonl"

    def _progress(self, plan: RestorePlan) -> Any:
        from tiered_storage.remote_log.task_progress import TaskProgress

        return TaskProgress("restored", plan.amount, self.log.info)


def _offset(value: int | str | None, name: str) -> int | None:
    """Return an offset, also as text; None where nothing is given. Raises AirflowFailException for what is none."""
    text = "" if value is None else str(value).strip()
    if text in {"", "None"}:
        return None
    if not (text.isascii() and text.isdigit()):
        raise AirflowFailException(f"{name} is {value!r}, and can only be an offset")
    return int(text)
