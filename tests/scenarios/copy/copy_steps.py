"""The steps of a copy run as programs: `python -m scenarios.copy.copy_steps STEP …`, each in a process of its own.

As Airflow's tasks, they hand over nothing but paths in the work area. The worker gets what Spark's workers get: its
arguments and one variable, but no settings file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyPlan
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

PLAN, FOLDER = "runs/several-hosts/plan.jsonl", "runs/several-hosts/1"


def run_step(step: str, *arguments: object, environment: dict[str, str]) -> str:
    """Run a step with nothing in its environment but `environment`; return what it printed."""
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "scenarios.copy.copy_steps", step, *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": tests, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (step, done.stdout, done.stderr)
    return done.stdout


def _opened(config: str) -> RemoteLogManager:
    settings = load_settings(Path(config))
    return RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True)


def plan(config: str) -> None:
    """Plan, and write the plan into the work area."""
    with _opened(config) as remote_log:
        remote_log.context.work.write(PLAN, [remote_log.plan_copy()], CopyPlan)


def copy(config: str) -> None:
    """Begin the copies of the plan, let another process copy the bytes, and print the batches to commit."""
    with _opened(config) as remote_log:
        [planned] = remote_log.context.work.read(PLAN, CopyPlan)
        begun = remote_log.begin_copy(planned, "several-hosts")
        job = remote_log.write_copy_job(FOLDER, begun)
        access = remote_log.context.access(job.files)
        with remote_log.keep_leases(begun.leases):
            run_step("work", *access.arguments, job.groups, environment=access.environment)
        print(json.dumps(job.write_batches(remote_log.context.work, 1)))  # noqa: T201 -- as an XCom


def work(*arguments: str) -> None:
    """Copy all groups of the job that the arguments and the environment describe."""
    _, work_url, _, folder, _, store, groups = arguments
    access = JobAccess.parse(work_url, folder, store, os.environ[JOB_SECRETS])
    assert run_copy_groups(access, range(int(groups)))


def commit(config: str, batch: str) -> None:
    """Commit the outcomes at the path `batch`."""
    with _opened(config) as remote_log:
        report = remote_log.commit_copy(remote_log.context.work.read(batch, CopyOutcome))
    assert report.is_whole, report


def read(config: str) -> None:
    """Read everything, audit deeply, and print the start offsets of the remote segments of each partition."""
    # Not for all steps: it imports pytest and much else.
    from support.remote_logs import assert_clean

    with _opened(config) as remote_log:
        assert_clean(remote_log)
        found = {
            str(partition): [
                each.start_offset for each in remote_log.context.segments.list_remote_log_segments(partition)
            ]
            for partition in remote_log.context.segments.list_partitions()
        }
    print(json.dumps(found))  # noqa: T201 -- what the test asks for


STEPS: dict[str, Callable[..., None]] = {"plan": plan, "copy": copy, "work": work, "commit": commit, "read": read}

if __name__ == "__main__":
    STEPS[sys.argv[1]](*sys.argv[2:])
