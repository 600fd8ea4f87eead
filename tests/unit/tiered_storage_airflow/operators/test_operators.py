"""The operators that no DAG of the project uses, and what a DAG run does not show of the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from support.tiered_site import TIERED, TieredSite
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.expiry import ExpiryRun
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage_airflow.operators.expiry import DeleteSegmentsOperator, MarkDeletedOperator, PlanExpiryOperator
from tiered_storage_airflow.operators.local_retention import PlanLocalRetentionOperator
from tiered_storage_airflow.operators.remote_log_metadata import AnnounceCopyOperator, ListSegmentsOperator
from tiered_storage_airflow.operators.remote_log_operator import DeletionPlanOperator
from tiered_storage_airflow.operators.remote_storage import COPY_JOB, CopySegmentsOperator, FetchSegmentOperator
from tiered_storage_airflow.runs.task_context import run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site of which orders-0 is remote."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    site.write_logs({"orders-0": 2, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED})
    site.copy("orders")
    return site


def context() -> Context:
    dag_run = SimpleNamespace(dag_id="trial", run_id="by hand", run_type="manual")
    return cast("Context", {"dag_run": dag_run, "params": {}, "outlet_events": {}})


def with_form(conf: Mapping[str, object], *fields: str) -> Context:
    """Return the context of a run that got `conf`, of a DAG whose form has `fields`."""
    dag = SimpleNamespace(params=dict.fromkeys(fields))
    return cast("Context", {"dag": dag, "dag_run": SimpleNamespace(conf=conf)})


def test_a_fetched_segment_begins_with_the_batch_that_holds_the_offset(site: TieredSite, tmp_path: Path) -> None:
    target = tmp_path / "fetched.log"
    operator = FetchSegmentOperator(task_id="fetch", topic="orders", partition=0, offset=13, path=str(target))
    assert operator.execute(context()) == str(target)
    assert target.read_bytes() == (site.logs / "orders-0" / "00000000000000000010.log").read_bytes()
    assert list(tmp_path.glob("*.part")) == []


def test_a_fetch_that_fails_leaves_no_file_under_the_name(site: TieredSite, tmp_path: Path) -> None:
    target = tmp_path / "fetched.log"
    operator = FetchSegmentOperator(task_id="fetch", topic="orders", partition=0, offset=999, path=str(target))
    with pytest.raises(AirflowFailException, match=r"OffsetOutOfRangeError: orders-0: .*999 "):
        operator.execute(context())
    assert list(tmp_path.glob("fetched*")) == []


def test_the_segments_of_a_topic_are_listed_in_the_work_area(site: TieredSite) -> None:
    path = ListSegmentsOperator(task_id="list", topic="orders").execute(context())
    with site.open() as remote_log:
        listed = remote_log.context.work.read_report(path, RemoteLogSegmentMetadata)
    assert listed == site.segments("orders-0")
    assert len(listed) == 2


def test_nothing_committed_is_nothing_to_announce(site: TieredSite) -> None:
    folder = f"runs/{run_folder(context())}/1"
    batch = {"name": "a batch", "path": f"{folder}/commit.jsonl", "committed": f"{folder}/committed.jsonl"}
    operator = AnnounceCopyOperator(task_id="announce", results=[batch])
    with pytest.raises(AirflowSkipException, match="nothing was committed"):
        operator.execute(context())
    with pytest.raises(AirflowSkipException):
        AnnounceCopyOperator(task_id="after", results=None).execute(context())


def test_the_job_is_a_file_of_the_project_and_a_retry_never_joins_an_earlier_job() -> None:
    assert COPY_JOB.is_file()
    operator: Any = CopySegmentsOperator(task_id="copy", plan="runs/a/plan.jsonl")
    assert operator.durable is False
    assert copy.copy(operator).conf is None


def test_a_pre_execute_of_the_dags_own_does_not_replace_the_check_of_the_form() -> None:
    operator = PlanExpiryOperator(task_id="plan", pre_execute=lambda _: None)
    with pytest.raises(AirflowFailException, match=r"dry_runn; .*dry_run\?"):
        operator.pre_execute(with_form({"dry_runn": True}, "dry_run"))
    operator.pre_execute(with_form({"dry_run": True}, "dry_run"))


def test_a_dag_without_a_form_takes_any_conf() -> None:
    PlanExpiryOperator(task_id="plan").pre_execute(with_form({"anything": 1}))


def test_a_run_that_an_earlier_version_began_is_finished(site: TieredSite) -> None:
    """Its plan is in the folder of the run, and not in that of a task."""
    site.configure({"orders": {**TIERED, "remote.deletion.allowed": True, "retention.bytes": 1}})
    path = f"runs/{run_folder(context())}/expiry.jsonl"
    with site.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(Selection("orders"), wall_clock())
        remote_log.context.work.write(path, [ExpiryRun(tuple(plans))], ExpiryRun)
    MarkDeletedOperator(task_id="mark", plan=path).execute(context())
    assert site.finished("orders-0") == []


@pytest.mark.parametrize("is_reported_later", [False, True])
def test_a_segment_that_may_no_longer_be_deleted_fails_the_marking_or_the_next_task(
    site: TieredSite, is_reported_later: bool
) -> None:
    deletable = {**TIERED, "remote.deletion.allowed": True, "retention.bytes": 1}
    site.configure({"orders": deletable})
    path = PlanExpiryOperator(task_id="plan").execute(context())
    site.configure({"orders": {**deletable, "remote.deletion.allowed": False}})
    marking = MarkDeletedOperator(task_id="mark", plan=path, is_reported_later=is_reported_later)
    if is_reported_later:
        not_marked = marking.execute(context())
        deleting = DeleteSegmentsOperator(task_id="delete", not_marked=not_marked)
        with pytest.raises(AirflowFailException, match=r"orders-0: .*not allowed"):
            deleting.execute(context())
    else:
        with pytest.raises(AirflowFailException, match=r"orders-0: .*not allowed"):
            marking.execute(context())
    assert site.finished("orders-0") == [0, 10]


@pytest.mark.parametrize("kind", [PlanExpiryOperator, PlanLocalRetentionOperator])
def test_plans_of_deletions_by_age_log_what_the_source_reports(
    site: TieredSite, monkeypatch: pytest.MonkeyPatch, kind: type[DeletionPlanOperator]
) -> None:
    logged: list[str] = []
    log = SimpleNamespace(info=lambda *_: None, warning=lambda text, *values: logged.append(text % values))
    monkeypatch.setattr(kind, "log", log)
    monkeypatch.setattr(LogDirectorySource, "notices", ("the clock of node 1 is slow",))
    site.configure({"orders": {**TIERED, "remote.deletion.allowed": True}})

    kind(task_id="plan").execute(context())

    assert "the clock of node 1 is slow" in logged
