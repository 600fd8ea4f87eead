"""What somebody who may write to the work area puts there by hand is neither carried out nor imported."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException

from support.tiered_site import TIERED, TieredSite
from tiered_storage.errors import UntrustedMessageError
from tiered_storage.remote_log.copy.job import CopyJob, run_copy_groups
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyPlan
from tiered_storage.remote_log.jobs.work_area import to_lines
from tiered_storage.remote_log.jobs.worker import described_job
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.retention.expiry import ExpiryRun
from tiered_storage.remote_log.retention.topic_deletion import TopicDeletionPlan
from tiered_storage_airflow.operators.deletion import MarkTopicDeletedOperator
from tiered_storage_airflow.operators.expiry import DeleteSegmentsOperator, MarkDeletedOperator
from tiered_storage_airflow.operators.local_retention import TrimLocalLogsOperator
from tiered_storage_airflow.operators.remote_log_metadata import (
    AnnounceCopyOperator,
    CommitMetadataOperator,
    ConcludeCopyOperator,
)
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator
from tiered_storage_airflow.operators.repair import FinishRepairOperator
from tiered_storage_airflow.runs.task_context import run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True}
REFUSED = "UntrustedMessageError: .*{}: was not written by this remote log"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site of which two segments of orders-0 are remote, and a third is due."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    site.write_logs({"orders-0": 2})
    site.configure({"orders": DELETABLE})
    site.copy("orders")
    site.append_segment("orders-0")
    return site


def context() -> Context:
    dag_run = SimpleNamespace(dag_id="trial", run_id="by hand", run_type="manual")
    task = SimpleNamespace(try_number=1, task_id="task", map_index=-1, xcom_push=lambda **_: None)
    return cast("Context", {"dag_run": dag_run, "params": {}, "outlet_events": {}, "ti": task})


def by_hand(site: TieredSite, path: str, raw: bytes) -> str:
    file = site.state / "work" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw)
    return path


def in_the_run(name: str) -> str:
    return f"runs/{run_folder(context())}/{name}"


def test_a_forged_plan_deletes_no_records(site: TieredSite) -> None:
    with site.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(remote_log.find_partition("orders", 0), 20)
    assert plan is not None
    path = by_hand(site, in_the_run("expiry.jsonl"), to_lines([ExpiryRun((plan,))], ExpiryRun))
    with pytest.raises(AirflowFailException, match=REFUSED.format(path)):
        MarkDeletedOperator(task_id="mark", plan=path).execute(context())
    assert site.finished("orders-0") == [0, 10]
    with site.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(remote_log.find_partition("orders", 0)) == 0


def test_a_signed_plan_of_another_run_is_refused(site: TieredSite) -> None:
    with site.open() as remote_log:
        partition = remote_log.find_partition("orders", 0)
        plan = remote_log.deletions.plan_record_deletion(partition, 20)
        assert plan is not None
        remote_log.context.work.write("runs/a-dry-run/expiry.jsonl", [ExpiryRun((plan,))], ExpiryRun)
    with pytest.raises(AirflowFailException, match="not a message"):
        MarkDeletedOperator(task_id="mark", plan="runs/a-dry-run/expiry.jsonl").execute(context())
    with site.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(partition) == 0


def test_a_forged_plan_deletes_no_topic(site: TieredSite) -> None:
    site.configure({"orders": {**DELETABLE, "remote.storage.enable": False}})
    with site.open() as remote_log:
        plan = remote_log.deletions.plan_topic_deletion("orders")
    path = by_hand(site, in_the_run("topic-deletion.jsonl"), to_lines([plan], TopicDeletionPlan))
    with pytest.raises(AirflowFailException, match=REFUSED.format(path)):
        MarkTopicDeletedOperator(task_id="mark", plan=path, topic="orders", confirmation="orders").execute(context())
    assert site.finished("orders-0") == [0, 10]


CONSUMERS: dict[str, Callable[[str], Any]] = {
    "plan.jsonl": lambda path: CopySegmentsOperator(task_id="copy", plan=path),
    "plan.json": lambda path: ConcludeCopyOperator(task_id="conclude", plan=path, must_match=False),
    "retention.jsonl": lambda path: TrimLocalLogsOperator(task_id="trim", plan=path),
    "expiry.jsonl": lambda path: MarkDeletedOperator(task_id="mark", plan=path),
    "not-marked.jsonl": lambda path: DeleteSegmentsOperator(task_id="delete", not_marked=path),
    "topic-deletion.jsonl": lambda path: MarkTopicDeletedOperator(
        task_id="mark", plan=path, topic="orders", confirmation="orders"
    ),
    "repair.jsonl": lambda path: FinishRepairOperator(task_id="finish", plan=path),
    "1/commit-00000.jsonl": lambda path: CommitMetadataOperator(
        task_id="commit", results={"name": "a batch", "path": path, "committed": in_the_run("1/committed-00000.jsonl")}
    ),
    "1/committed-00000.jsonl": lambda path: AnnounceCopyOperator(
        task_id="announce", results=[{"name": "a batch", "path": in_the_run("1/commit-00000.jsonl"), "committed": path}]
    ),
    "1/not-begun.jsonl": lambda path: FinishRepairOperator(
        task_id="finish", plan=in_the_run("repair.jsonl"), results=[{"not_begun": path}]
    ),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_every_task_refuses_what_is_not_signed(site: TieredSite, name: str) -> None:
    path = by_hand(site, in_the_run(name), b"")
    with pytest.raises(AirflowFailException, match=REFUSED.format(path)):
        CONSUMERS[name](path).execute(context())
    assert site.finished("orders-0") == [0, 10]
    assert site.local("orders-0") == [0, 10, 20, 30]


@pytest.mark.parametrize("name", CONSUMERS)
def test_every_task_refuses_a_path_of_another_run(site: TieredSite, name: str) -> None:
    with pytest.raises(AirflowFailException, match="not a message"):
        CONSUMERS[name](f"runs/another/{name}").execute(context())
    assert site.finished("orders-0") == [0, 10]


def begun_copy(remote_log: RemoteLogManager, folder: str) -> tuple[BegunCopy, CopyJob]:
    begun = remote_log.begin_copy(remote_log.plan_copy(), "run")
    assert begun.tasks
    return begun, remote_log.write_copy_job(folder, begun)


def test_the_class_of_a_forged_job_is_not_even_imported(
    site: TieredSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "forged_storage_manager.py").write_text("raise SystemExit('imported, with the secrets at hand')")
    with site.open() as remote_log:
        _, job = begun_copy(remote_log, "runs/trial/1")
        access = remote_log.context.access(job.files)
        file = site.state / "work" / "runs" / "trial" / "1" / "job.json"
        [description, signature] = file.read_text().splitlines()
        forged = {**json.loads(description), "storage_class": "forged_storage_manager.Manager", "storage_url": "x://y"}
        # As another version's job.json named it, unsigned, and with the signature of the true one.
        for raw in (json.dumps(forged) + "\n", f"{json.dumps(forged)}\n{signature}\n"):
            file.write_text(raw)
            with pytest.raises(UntrustedMessageError, match=r"runs/trial/1/job\.json"):
                described_job(access)
            with pytest.raises(UntrustedMessageError, match=r"runs/trial/1/job\.json"):
                run_copy_groups(access, [0])
        # Even signed, it says nothing of the store.
        job.files.work.write("runs/trial/1/job.json", [forged], dict)
        assert run_copy_groups(access, [0]) == 1
    assert "forged_storage_manager" not in sys.modules


def test_tasks_and_results_of_another_run_are_refused(site: TieredSite) -> None:
    work = site.state / "work" / "runs"
    with site.open() as remote_log:
        _, first = begun_copy(remote_log, "runs/first/1")
        assert run_copy_groups(remote_log.context.access(first.files), [0]) == 1
        _, second = begun_copy(remote_log, "runs/second/1")
        shutil.copy(work / "first/1/result-00000.jsonl", work / "second/1/result-00000.jsonl")
        with pytest.raises(UntrustedMessageError, match=r"runs/second/1/result-00000\.jsonl"):
            list(second.outcomes())
        (work / "second/1/result-00000.jsonl").unlink()
        shutil.copy(work / "first/1/tasks-00000.jsonl", work / "second/1/tasks-00000.jsonl")
        with pytest.raises(UntrustedMessageError, match=r"runs/second/1/tasks-00000\.jsonl"):
            run_copy_groups(remote_log.context.access(second.files), [0])
    assert site.finished("orders-0") == [0, 10]


def test_a_result_of_no_task_of_the_job_is_left_out(site: TieredSite) -> None:
    with site.open() as remote_log:
        _, first = begun_copy(remote_log, "runs/first/1")
        assert run_copy_groups(remote_log.context.access(first.files), [0]) == 1
        results = first.files.results(0, CopyOutcome)
        begun, second = begun_copy(remote_log, "runs/second/1")
        # The try before may have left them in this very folder, signed.
        second.files.write_results(0, results, CopyOutcome)
        assert list(second.outcomes()) == [CopyOutcome(task, None) for task in begun.tasks]


def test_workers_can_sign_no_batch_to_commit_and_no_plan(site: TieredSite) -> None:
    with site.open() as remote_log:
        _, job = begun_copy(remote_log, "runs/trial/1")
        assert run_copy_groups(remote_log.context.access(job.files), [0]) == 1
        results = list(job.outcomes())
        job.files.work.write("runs/trial/1/commit-00000.jsonl", results, CopyOutcome)
        job.files.work.write("runs/trial/plan.jsonl", [remote_log.plan_copy()], CopyPlan)
    for operator in (
        CommitMetadataOperator(task_id="c", results={"name": "b", "path": "runs/trial/1/commit-00000.jsonl"}),
        CopySegmentsOperator(task_id="copy", plan="runs/trial/plan.jsonl"),
    ):
        with pytest.raises(AirflowFailException, match="not a message"):
            operator.execute(context())
    assert site.finished("orders-0") == [0, 10]


def test_the_jobs_secret_is_in_no_file_and_no_text(site: TieredSite) -> None:
    with site.open() as remote_log:
        _, job = begun_copy(remote_log, "runs/trial/1")
        access = remote_log.context.access(job.files)
        secrets = [access.secrets.signing_key, remote_log.context.store.work_area_key().hex()]
    written = [path.read_bytes() for path in site.state.rglob("work/**/*") if path.is_file()]
    assert written
    for secret in secrets:
        assert secret not in repr(access)
        assert not [raw for raw in written if secret.encode() in raw or bytes.fromhex(secret) in raw]
    assert len(set(secrets)) == 2
