"""Operators that bring a topic back from the store: plan, restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import PlanningOperator, TopicReadOperator
from tiered_storage_airflow.runs.scope import is_switched_on, whole_number
from tiered_storage_airflow.runs.summary import keep_done, summarize

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.restore.directory import DirectoryTarget
    from tiered_storage.remote_log.restore.request import RestorePlan
    from tiered_storage.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class _Directory:
    """The log directory to restore into."""

    path: Path

    @property
    def name(self) -> str:
        """Its name for a log."""
        return str(self.path)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster to restore into: its name for a log, its address, and the client's properties."""

    name: str
    bootstrap_servers: str
    properties: Mapping[str, str] = field(repr=False)


class _RestoringOperator(TopicReadOperator):
    """What both operators share: a range of offsets, and where to restore to."""

    template_fields: Sequence[str] = (
        *TopicReadOperator.template_fields,
        "from_offset", "to_offset", "target", "connection", "as_topic", "as_topic_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        from_offset: int | str | None = None,
        to_offset: int | str | None = None,
        target: str = "",
        connection: str = "",
        to_directory: str = "",
        to_cluster: str = "",
        client_properties: str = "",
        as_topic: str = "",
        as_topic_id: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_offset = from_offset
        self.to_offset = to_offset
        self.target = target
        self.connection = connection
        self.as_topic = as_topic
        self.as_topic_id = as_topic_id
        self.to_directory = _plain(to_directory, "to_directory")
        self.to_cluster = _plain(to_cluster, "to_cluster")
        self.client_properties = _plain(client_properties, "client_properties")

    def _where(self, settings: Settings) -> _Directory | _Cluster:
        """Return where to restore to. Raises AirflowFailException unless exactly one allowed place is named."""
        if sum(map(bool, (self.target, self.to_directory, self.to_cluster))) != 1:
            raise AirflowFailException(
                "name exactly one place to restore to: target (directory or cluster), or in a DAG file to_directory or "
                "to_cluster"
            )
        if self.connection and self.target != "cluster":
            raise AirflowFailException(f"connection is {self.connection!r}, and is only for the target cluster")
        if self.to_directory:
            return _Directory(settings.base / self.to_directory)
        if self.to_cluster:
            from tiered_storage.kafka_wire.connections.client_properties import read_client_properties

            file = settings.base / self.client_properties if self.client_properties else None
            return _Cluster(self.to_cluster, self.to_cluster, read_client_properties(file) if file else {})
        if self.target == "directory":
            if settings.restore_directory is None:
                raise AirflowFailException(
                    "the target is directory, and no directory may be restored into: an administrator names one by the "
                    "setting restore.directory"
                )
            return _Directory(settings.restore_directory)
        if self.target == "cluster":
            return _cluster_of(self._connection_id(settings))
        raise AirflowFailException(f"target is {self.target!r}, and can only be directory or cluster")

    def _connection_id(self, settings: Settings) -> str:
        """Return the chosen connection, one of restore.connections."""
        allowed = settings.restore_connections
        if self.connection in allowed or (not self.connection and len(allowed) == 1):
            return self.connection or allowed[0]
        found = f"it has {', '.join(allowed)}" if allowed else "it is empty"
        asked = f"{self.connection!r} is not in" if self.connection else "no connection is named of"
        raise AirflowFailException(
            f"the target is cluster, and {asked} the setting restore.connections: {found}; choose one of them, or let "
            "an administrator add one"
        )

    def _directory_target(self, root: Path) -> DirectoryTarget:
        """Return the target for files. Raises ConfigurationError for an id that Kafka would reject."""
        from tiered_storage.remote_log.restore.directory import DirectoryTarget

        return DirectoryTarget(root, self.as_topic or None, self.as_topic_id or None)

    def _plan(self, remote_log: RemoteLogManager) -> RestorePlan:
        """Plan, and log notices for the user. Fails for a gap that is not allowed, and for a wrong name."""
        from tiered_storage.kafka_log.files.topic_partition import RESERVED_PREFIX
        from tiered_storage.remote_log.restore.request import RestoreRequest, parse_time
        from tiered_storage.remote_log.selection import parse_partitions

        request = RestoreRequest(
            self.topic,
            self.topic_id or None,
            parse_partitions(self.partitions or None),
            whole_number(self.from_offset, "from_offset", least=0),
            whole_number(self.to_offset, "to_offset", least=0),
            parse_time("from_time", self.from_time),
            parse_time("to_time", self.to_time),
        )
        name = request.named_as(self.as_topic or None)
        if name.startswith(RESERVED_PREFIX):
            raise AirflowFailException(
                f"nothing was done: no DAG restores to {name}: names that begin with {RESERVED_PREFIX} are for Kafka's "
                "own topics; choose another name by as_topic, or run 'tiered-storage restore' on the command line"
            )
        plan = remote_log.restores.plan(request)
        for finding in (*plan.notices, *plan.gaps):
            self.log.warning("%s", finding)
        plan.ensure_possible(allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"))
        return plan


class PlanRestoreOperator(_RestoringOperator, PlanningOperator):
    """Show which records of a topic the store can restore; a dry run skips the tasks right after it.

    :param from_offset: the first offset (inclusive); `to_offset` the end (exclusive)
    :param target: where RestoreOperator will restore to; or `to_directory` or `to_cluster`
    :param as_topic: the name there, and `as_topic_id` the id: as for RestoreOperator
    :param dry_run: only show the plan
    """

    def execute(self, context: Context) -> None:
        """Read the metadata and the names in the store, and for a range a few indexes.

        Fails if no place to restore to is named.
        """
        with self.opened_to_read(context) as remote_log:
            where = self._where(remote_log.context.settings)
            self.log.info("to restore into %s", where.name)
            if isinstance(where, _Directory):
                self._directory_target(where.path)
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
        if self.is_dry_run:
            self.skip_next_tasks(context)


class RestoreOperator(_RestoringOperator):
    """Restore a topic, as PlanRestoreOperator shows it, into a log directory or into a running cluster.

    Name one of `target`, `to_directory` and `to_cluster`. The last two, `client_properties` and `offset_map` are not
    templated: no form may fill them in. Relative paths start from the same folder as those of the settings.

    :param target: directory (that of the setting restore.directory) or cluster (one of restore.connections)
    :param connection: which of restore.connections; empty: the only one
    :param to_directory: the log directory of a stopped broker, on the machine of Airflow's worker
    :param to_cluster: host:port of a running cluster
    :param as_topic: the name there; empty: the same
    :param as_topic_id: the topic's id in the directory's cluster; empty: the id found there
    :param append: append after the records that the cluster's topic already holds
    :param offset_map: the file of old and new offsets; empty: a file in restores/ of the work area, or of
        state.directory if the work area is not a folder
    :param client_properties: a file of librdkafka's properties for `to_cluster`, on the machine of Airflow's worker
    :param validation: manifest, sizes or records
    :param workers: how many partitions to restore into a directory at once
    """

    template_fields: Sequence[str] = (
        *_RestoringOperator.template_fields,
        "append", "validation",
    )  # fmt: skip

    def __init__(
        self,
        *,
        append: bool | str = False,
        offset_map: str = "",
        validation: str = "sizes",
        workers: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.append = append
        self.offset_map = _plain(offset_map, "offset_map")
        self.validation = validation
        self.workers = workers

    def execute(self, context: Context) -> None:
        """Restore; a retry continues where this try ended."""
        with self.opened_to_read(context) as remote_log:
            where = self._where(remote_log.context.settings)
            plan = self._plan(remote_log)
            if isinstance(where, _Directory):
                self._into_directory(remote_log, plan, where.path, context)
            else:
                self._into_cluster(remote_log, plan, where, context)

    def _into_directory(self, remote_log: RemoteLogManager, plan: RestorePlan, root: Path, context: Context) -> None:
        from tiered_storage.remote_log.restore.directory import RestoredDirectory
        from tiered_storage.remote_log.restore.validation import Validation

        target = self._directory_target(root)
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
                root, each.partition, each.log_start_offset, each.log_end_offset - 1,
            )  # fmt: skip
        summarize(
            remote_log, context, self.log, partitions=len(done), segments=sum(each.segments for each in done),
            bytes=sum(each.size for each in done), into=str(root),
        )  # fmt: skip

    def _into_cluster(
        self, remote_log: RemoteLogManager, plan: RestorePlan, cluster: _Cluster, context: Context
    ) -> None:
        from tiered_storage.remote_log.restore.cluster import ClusterTarget, RestoredRecords
        from tiered_storage.remote_log.restore.validation import Validation

        settings = remote_log.context.settings
        target = ClusterTarget(
            cluster.bootstrap_servers,
            settings.base / self.offset_map if self.offset_map else settings.work_folder / "restores",
            self.as_topic or None,
            cluster.properties,
            append=is_switched_on(self.append, "append"),
            is_folder=not self.offset_map,
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
            records=sum(each.sent + each.found for each in report.partitions), into=cluster.name,
            offset_map=str(report.map_path),
        )  # fmt: skip

    def _progress(self, plan: RestorePlan) -> Any:
        from tiered_storage.remote_log.progress import TaskProgress

        return TaskProgress("restored", plan.amount, self.log.info)


def _plain(value: object, name: str) -> str:
    """Return a DAG file's value as text. Raises ValueError for a template or an XCom, which a form could fill in."""
    text = str(value)
    if "{{" in text or "{%" in text:
        raise ValueError(
            f"{name} takes no template, since a form could name any place by it: use target and connection"
        )
    return text


def _cluster_of(connection_id: str) -> _Cluster:
    """Return the cluster of an Airflow connection, whose extra holds librdkafka's properties."""
    from tiered_storage_airflow.hooks.connections import properties_of

    where = f"connection {connection_id}"
    properties = properties_of(connection_id, "the setting restore.connections", for_records=True)
    servers = properties.pop("bootstrap.servers", "")
    if not servers:
        raise AirflowFailException(f"{where}: its extra is a JSON object, and needs bootstrap.servers")
    return _Cluster(where, servers, properties)
