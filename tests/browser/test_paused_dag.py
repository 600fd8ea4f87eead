"""A dry run of a DAG that is paused, by Airflow's own form and with its schedules on: nothing is deleted.

The form switches the DAG on, so its schedule starts a run too, maybe before the dry run; needs chromium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Request

from browser.past_log import PARTITIONS
from browser.stage import COPY, RUN_WITHIN, Remote, Stage, stage
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded.api_client import DagRun

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

EXPIRE = "expire_remote_segments"
PLAN = "plan_deletions"
PAST_RETENTION = {"log.retention.ms": 60_000}
"""Far less than the age of any record."""
_PLANNED = re.compile(r"past retention: (\S+) before offset \d+: ([1-9]\d*) segments")
_BOOKKEEPING = ("store.generation/", "store.clock/")


@dataclass(frozen=True, slots=True)
class Moment:
    """What is there at one moment: remote segments and objects but for the store's bookkeeping, and local files."""

    remote: Remote
    local: dict[str, int]

    @classmethod
    def of(cls, stage: Stage) -> Moment:
        """Look now."""
        remote = stage.remote()
        objects = tuple(each for each in remote.objects if not each[0].startswith(_BOOKKEEPING))
        files = {str(path): path.stat().st_size for path in stage.log_directory.rglob("*") if path.is_file()}
        return cls(Remote(remote.segments, objects), files)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended: its state, its tasks' states, and their logs."""

    state: str
    tasks: dict[str, str | None]
    log: str

    @classmethod
    def of(cls, stage: Stage, run: DagRun) -> Ended:
        """Read it."""
        tasks = stage.api.task_instances(run)
        log = "\n".join(stage.api.task_log(task) for task in tasks if task.state in {"success", "failed"})
        return cls(run.state, {task.task_id: task.state for task in tasks}, log)

    @property
    def planned(self) -> dict[str, int]:
        """How many segments it planned to delete, by partition."""
        return {partition: int(segments) for partition, segments in _PLANNED.findall(self.log)}


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether each DAG was paused before its form was opened, what its runs did, and what was there around them."""

    was_paused: dict[str, bool]
    copied: Moment
    by_form: Ended
    by_schedule: Ended
    after_both: Moment
    plan: Ended
    after_plan: Moment


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    root = tmp_path_factory.mktemp("stage")
    with stage(root, root / "pictures", free_ports(1)[0], schedules=True) as on:
        on.api.unpause(COPY)
        on.run_by_form(COPY, on.pages.fill_trigger_form(COPY), "copy")
        on.expect_state(on.first_scheduled_run(COPY), "success")
        with on.changed_settings(PAST_RETENTION):
            yield _look_at_deletions(on)


def _look_at_deletions(on: Stage) -> Seen:
    copied = Moment.of(on)
    was_paused = {dag_id: on.is_paused(dag_id) for dag_id in (EXPIRE, PLAN)}
    by_form = _dry_run_of_the_paused_dag(on)
    by_schedule = on.first_scheduled_run(EXPIRE)
    after_both = Moment.of(on)
    return Seen(
        was_paused=was_paused,
        copied=copied,
        by_form=Ended.of(on, by_form),
        by_schedule=Ended.of(on, by_schedule),
        after_both=after_both,
        plan=Ended.of(on, on.run_by_form(PLAN, on.pages.fill_trigger_form(PLAN), "only_plan")),
        after_plan=Moment.of(on),
    )


def _dry_run_of_the_paused_dag(on: Stage) -> DagRun:
    """Trigger it by the form, which asks Airflow to switch the DAG on at the same moment."""
    button = on.pages.fill_trigger_form(EXPIRE, {}, ["dry_run"])
    on.pages.name_run("only_look")
    with on.pages.page.expect_request(_switches_on):
        on.pages.submit(button)
    if on.is_paused(EXPIRE):
        # On SQLite Airflow may refuse one of two requests at the same moment; a person switches it on by hand then.
        on.api.unpause(EXPIRE)
    run = on.api.wait_for_run(on.api.run(EXPIRE, "only_look"), RUN_WITHIN)
    on.expect_state(run, "success")
    return run


def _switches_on(request: Request) -> bool:
    is_change = request.method == "PATCH" and request.url.endswith(f"/dags/{EXPIRE}")
    return is_change and request.post_data_json == {"is_paused": False}


def test_the_form_of_a_paused_dag_switches_it_on_and_shows_what_is_due(seen: Seen) -> None:
    assert seen.was_paused[EXPIRE]
    assert seen.by_form.tasks == {"plan": "success", "mark_deleted": "skipped", "delete": "skipped"}
    assert set(seen.by_form.planned) == {str(partition) for partition in PARTITIONS}


def test_the_scheduled_run_that_this_starts_deletes_nothing(seen: Seen) -> None:
    assert {segment.state for segment in seen.after_both.remote.segments} == {SegmentState.COPY_SEGMENT_FINISHED}
    assert seen.after_both == seen.copied
    assert seen.by_schedule.tasks == {"plan": "success", "mark_deleted": "skipped", "delete": "skipped"}
    assert seen.by_schedule.planned == seen.by_form.planned
    assert "nothing is deleted: " in seen.by_schedule.log
    assert "TIERED_STORAGE_SCHEDULED_DELETION_ENABLE" in seen.by_schedule.log


def test_planning_is_on_from_the_beginning_and_changes_nothing(seen: Seen) -> None:
    assert not seen.was_paused[PLAN]
    assert seen.plan.tasks == {"local_retention": "success", "expiry": "success"}
    assert seen.plan.planned == seen.by_form.planned
    assert seen.after_plan == seen.copied
