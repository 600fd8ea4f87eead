"""Runs of the project's DAGs in the Airflow of HOME.

Runs take place in this process, by `dag.test`, which makes a run of its own: here it is handed the run that Airflow's
own models made, be it a manual one, one of a backfill, or one that asset events started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

from support.airflow_home import PROJECT

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG
    from airflow.sdk.execution_time.supervisor import TaskRunResult
    from sqlalchemy.orm import Session

OWN_DAGS = Path(__file__).parent / "own_dags"
"""DAGs such as users write, of the tests' own."""
CANARY = {"TIERED_STORAGE_GATEWAY_CANARY_TOPIC": "canary"}
"""With it, there is the DAG gateway_health too."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """How a run ended. A mapped task is named `task_id[name of its map index]`; `errors` holds what each try raised.

    `log` has what the tasks' logs show, with secrets masked as there.
    """

    run_id: str
    state: str
    tasks: Mapping[str, str]
    errors: Mapping[str, Sequence[BaseException]]
    log: str

    @property
    def messages(self) -> str:
        """What all failed tries said, a line each."""
        return "\n".join(str(error) for of_task in self.errors.values() for error in of_task)


class AirflowHome:
    """The Airflow in HOME: its database, made when this is, and the project's DAGs in it."""

    def __init__(self) -> None:
        from airflow.utils.db import initdb

        initdb()
        _write_dags()

    def refresh(self) -> None:
        """Look for DAGs again, as the DAG processor does: another cluster may have got some."""
        _write_dags()

    def dag(self, dag_id: str, folder: Path = PROJECT / "dags") -> DAG:
        """Parse the DAG from its file and return it."""
        from airflow.dag_processing.dagbag import DagBag

        return DagBag(dag_folder=folder).dags[dag_id]

    def run(
        self,
        dag_id: str,
        conf: Mapping[str, object] | None = None,
        run_id: str | None = None,
        folder: Path = PROJECT / "dags",
        user: str | None = None,
    ) -> FinishedRun:
        """Run the DAG of that id in `folder` by hand, to its end; `user` is who triggered it."""
        now = datetime.now(UTC)
        given: dict[str, Any] = {"run_id": run_id} if run_id else {}
        made = _make_run(dag_id, "manual", "rest_api", now, conf=dict(conf or {}), triggering_user_name=user, **given)
        return self.finish(dag_id, made, folder)

    def run_by_schedule(self, dag_id: str) -> FinishedRun:
        """Run the DAG as the scheduler does once its last interval has passed."""
        now = datetime.now(UTC)
        made = _make_run(dag_id, "scheduled", "timetable", now, data_interval=(now - timedelta(hours=1), now))
        return self.finish(dag_id, made)

    @contextmanager
    def paused(self, dag_id: str) -> Iterator[None]:
        """Pause the DAG at the beginning of a `with` block and again at its end, as it is when it is new."""
        _set_paused(dag_id, is_paused=True)
        try:
            yield
        finally:
            _set_paused(dag_id, is_paused=True)

    def unpause(self, dag_id: str) -> None:
        """Switch the DAG on, as the form does before it triggers a run."""
        _set_paused(dag_id, is_paused=False)

    def run_again(self, dag_id: str, run: FinishedRun, tasks: Collection[str] | None = None) -> FinishedRun:
        """Clear a run and all its tasks, or only `tasks`, as the UI and the REST API do, and run it again."""
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            cleared = session.scalars(select(DagRun).where(DagRun.run_id == run.run_id)).one()
            found = cleared.get_task_instances(session=session)
            clear_task_instances([each for each in found if tasks is None or each.task_id in tasks], session)
            made = int(cleared.id)
        return self.finish(dag_id, made)

    def run_for_events(
        self,
        dag_id: str,
        extras: Sequence[Mapping[str, object]],
        conf: Mapping[str, object] | None = None,
        asset: str = "remote_log",
    ) -> FinishedRun:
        """Run the DAG as the scheduler does for several events of the asset, one for each of `extras`."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            found = session.scalars(select(AssetModel).where(AssetModel.name == asset)).one()
            events = [AssetEvent(asset_id=found.id, extra=dict(extra)) for extra in extras]
            session.add_all(events)
            session.flush()
            known = [event.id for event in events]
        made = _make_run(dag_id, "asset_triggered", "asset", None, events=known, conf=dict(conf or {}))
        return self.finish(dag_id, made)

    def backfill(
        self, dag_id: str, first: datetime, last: datetime, *, backwards: bool = False, **by: Any
    ) -> list[FinishedRun]:
        """Backfill the logical dates from `first` to `last`, both inclusive, and all again that were there already."""
        with self.backfilling(dag_id, first, last, backwards=backwards, **by) as made:
            return [self.finish(dag_id, run) for run in made]

    @contextmanager
    def backfilling(
        self,
        dag_id: str,
        first: datetime,
        last: datetime,
        *,
        backwards: bool = False,
        conf: Mapping[str, object] | None = None,
        user: str | None = None,
    ) -> Iterator[list[int]]:
        """Make a backfill and yield its runs, in the order in which they are to be finished; it ends with the block."""
        from airflow.models.backfill import Backfill, BackfillDagRun, ReprocessBehavior, _create_backfill
        from airflow.utils.session import create_session
        from sqlalchemy import select

        backfill = _create_backfill(
            dag_id=dag_id,
            from_date=first,
            to_date=last,
            max_active_runs=1,
            reverse=backwards,
            dag_run_conf=dict(conf or {}),
            triggering_user_name=user,
            reprocess_behavior=ReprocessBehavior.COMPLETED,
        )
        with create_session() as session:
            made = session.scalars(
                select(BackfillDagRun.dag_run_id)
                .where(BackfillDagRun.backfill_id == backfill.id)
                .order_by(BackfillDagRun.sort_ordinal)
            ).all()
        try:
            yield [run for run in made if run is not None]
        finally:
            with create_session() as session:
                session.get_one(Backfill, backfill.id).completed_at = datetime.now(UTC)

    def events_of(self, run: FinishedRun) -> list[dict[str, Any]]:
        """Return what else the asset events of `run` say."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            found = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id))
            return [dict(event.extra) for event in found]

    def announced_by(self, run: FinishedRun, cluster: str | None = None) -> list[str]:
        """Return the partitions that the one asset event of `run` announces."""
        from tiered_storage.remote_log.model import TopicIdPartition
        from tiered_storage_airflow.hooks.remote_log import RemoteLogHook

        [event] = self.events_of(run)
        with RemoteLogHook(cluster=cluster).get_conn() as remote_log:
            partitions = [str(each) for each in remote_log.context.work.read(event["path"], TopicIdPartition)]
        assert event["partitions"] == len(partitions)
        return partitions

    def rendered(self, run: FinishedRun) -> str:
        """Return all that Airflow shows and keeps of the run beside its logs: rendered fields and XComs, as text."""
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            kept = [str(row.rendered_fields) for row in session.scalars(select(RenderedTaskInstanceFields))]
            kept += [str(row.value) for row in session.scalars(select(XComModel).where(XComModel.run_id == run.run_id))]
        return "\n".join(kept)

    def finish(self, dag_id: str, made: int, folder: Path = PROJECT / "dags") -> FinishedRun:
        """Run the run of that id to its end."""
        dag = self.dag(dag_id, folder)
        for task in dag.tasks:
            task.retry_delay, task.retry_exponential_backoff = timedelta(0), 0.0
        errors: dict[str, list[BaseException]] = {}
        lines: list[str] = []
        with _handed_over(made), _collected(errors), _logged(lines):
            dag.test()
        return _finished(made, errors, "\n".join(lines))


def _set_paused(dag_id: str, *, is_paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.get_one(DagModel, dag_id).is_paused = is_paused


def _write_dags() -> None:
    """Write the DAGs into the database, as the DAG processor does."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    manager = DagBundlesManager()  # type: ignore[no-untyped-call]  # Airflow's
    manager.sync_bundles_to_db()
    [bundle] = manager.get_all_dag_bundles()
    bundle.initialize()
    for folder in (PROJECT / "docs" / "examples", OWN_DAGS, bundle.path):
        bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name=bundle.name)
        sync_bag_to_db(bag, bundle.name, bundle.version)


def _make_run(
    dag_id: str, kind: str, triggered_by: str, logical_date: datetime | None, events: Sequence[int] = (), **of_run: Any
) -> int:
    """Make a run of that kind that waits to be started, having consumed the asset `events`; return its id."""
    from airflow.models.asset import AssetEvent
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    now = datetime.now(UTC)
    values = {
        "run_id": f"{kind}__{now.isoformat()}_{uuid4().hex[:8]}",
        "run_type": DagRunType(kind),
        "triggered_by": DagRunTriggeredByType(triggered_by),
        "logical_date": logical_date,
        "data_interval": logical_date and (logical_date, logical_date),
        "run_after": now,
        "conf": {},
        **of_run,
    }
    with create_session() as session:
        dag = SerializedDagModel.get_dag(dag_id)
        assert dag is not None
        run = dag.create_dagrun(state=DagRunState.QUEUED, session=session, **values)
        run.consumed_asset_events.extend(session.scalars(select(AssetEvent).where(AssetEvent.id.in_(events))))
        session.flush()
        return int(run.id)


@contextmanager
def _handed_over(made: int) -> Iterator[None]:
    """Let `dag.test` start the run `made` instead of making one.

    It does not parse and write all DAGs before each run either: `_write_dags` and `refresh` do.
    """

    def hand_over(*, dag: Any, session: Session, **_: object) -> DagRun:
        from airflow.models.dagrun import DagRun
        from airflow.utils.state import DagRunState

        run = session.get_one(DagRun, made)
        run.dag, run.state = dag, DagRunState.RUNNING
        session.commit()
        return run

    def no_bundles(_: object) -> list[object]:
        return []

    bundles = "airflow.dag_processing.bundles.manager.DagBundlesManager.get_all_dag_bundles"
    with patch("airflow.models.dagrun.get_or_create_dagrun", hand_over), patch(bundles, no_bundles):
        yield


@contextmanager
def _collected(errors: dict[str, list[BaseException]]) -> Iterator[None]:
    """Collect what the tasks raise, which `dag.test` only logs."""
    from airflow.sdk.execution_time import supervisor

    run_task = supervisor.run_task_in_process

    def run_and_collect(*arguments: Any, **options: Any) -> TaskRunResult:
        result = run_task(*arguments, **options)
        if result.error is not None:
            errors.setdefault(_name(result.ti.task_id, result.ti.map_index, result.ti.rendered_map_index), []).append(
                result.error
            )
        return result

    with patch.object(supervisor, "run_task_in_process", run_and_collect):
        yield


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    """Collect the lines of the log, as they are written."""
    import structlog

    def keep(_logger: object, _method: str, line: str) -> str:
        lines.append(str(line))
        return line

    processors = structlog.get_config()["processors"]
    processors.append(keep)
    try:
        yield
    finally:
        processors.remove(keep)


def _finished(made: int, errors: Mapping[str, Sequence[BaseException]], log: str) -> FinishedRun:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        run = session.get_one(DagRun, made)
        tasks = {
            _name(task.task_id, task.map_index, task.rendered_map_index): str(task.state)
            for task in run.get_task_instances(session=session)
        }
        return FinishedRun(run.run_id, str(run.state), tasks, errors, log)


def _name(task_id: str, map_index: int | None, rendered: str | None) -> str:
    return task_id if map_index in {None, -1} else f"{task_id}[{rendered or map_index}]"
