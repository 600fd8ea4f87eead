"""Writes what this version of the library leaves on the disk, for later versions to open: one folder a generation.

    PYTHONPATH=tests python -m golden.make_yesterday 3

Run it before the metadata's schema, the manifest, a document in the store or a message in the work area changes, with
the next number; then never again: a generation that is there is refused. README.md beside it lists what each has.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import yaml

import tiered_storage
from golden.earlier_versions import CLUSTER_ID, FOLDER, PLACE, RUN, generation, open_at, work_files
from support.remote_logs import SIZES, a_remote_log, topic_id
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.selection import EVERYTHING, Selection

_LIBRARY = Path(tiered_storage.__file__).parent

RETENTION = {"retention.ms": 9_985_000}
"""At the clock's time the first of three segments is past it."""

SETTINGS = {
    "log.dirs": ["logs"],
    "state.directory": "state",
    "topics": {
        "orders": {"remote.storage.enable": True, **RETENTION},
        "payments": {
            "remote.storage.enable": True,
            "local.deletion.allowed": True,
            "remote.deletion.allowed": True,
            **RETENTION,
        },
        "refunds": {"remote.storage.enable": True, "remote.deletion.allowed": True, "retention.ms": -1},
    },
}


def main() -> None:
    """Write generation number `argv[1]`."""
    target = generation(int(sys.argv[1]))
    if target.exists():
        sys.exit(f"{target} is there: what yesterday's version wrote cannot be made by today's")
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "made"
        root.mkdir()
        a_remote_log(root, {("orders", 0): 3, ("orders", 1): 3, ("payments", 0): 3, ("refunds", 0): 3})
        (root / "settings.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False), "utf-8")
        with open_at(root) as remote_log:
            _decide(remote_log)
            _copy_and_commit_all_but_one(remote_log)
            _expire(remote_log)
            _repair(remote_log, root)
            remote_log.context.safety.stop("somebody looks into it", "yesterday")
        for text in work_files(root):
            content = text.read_text("utf-8").replace(str(root), PLACE)
            text.write_text(content.replace(str(_LIBRARY), f"{PLACE}/library"), "utf-8")
        shutil.copytree(root, target, ignore=shutil.ignore_patterns(".lock"))


def _decide(remote_log: RemoteLogManager) -> None:
    for name, deletion_allowed in (("orders", True), ("returns", False)):
        topic = Topic(
            CLUSTER_ID,
            topic_id(name),
            name,
            remote_storage_enable=True,
            local_deletion_allowed=deletion_allowed,
            remote_deletion_allowed=deletion_allowed,
            properties={"retention.ms": str(RETENTION["retention.ms"])},
        )
        remote_log.context.topics.put(topic)


def _copy_and_commit_all_but_one(remote_log: RemoteLogManager) -> None:
    """Carry a run out as its DAG does, up to where orders-1 would be committed."""
    plan = remote_log.plan_copy()
    remote_log.context.work.write(f"{RUN}/plan.jsonl", [plan], CopyPlan)
    job = remote_log.write_copy_job(FOLDER, remote_log.begin_copy(plan, "yesterday"))
    for number in range(job.groups):
        job.run_group(number, remote_log.context.storage, SIZES, remote_log.context.clock)
    for batch in job.write_batches(remote_log.context.work, 1):
        if batch["name"] != "orders-1":
            remote_log.commit_copy(remote_log.context.work.read(batch["path"], CopyOutcome))


def _expire(remote_log: RemoteLogManager) -> None:
    """Expire the first segment of orders-0 and payments-0; only that of payments is deleted."""
    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    # To expire orders-1 would take the lease over under which it is copied.
    plans = [plan for plan in plans if plan.topic_id_partition.partition == 0]
    remote_log.context.work.write(f"{RUN}/expiry.jsonl", plans, ExpiryPlan)
    remote_log.deletions.mark_expired(plans, "yesterday")
    remote_log.deletions.delete_marked("yesterday", Selection("payments"))


def _repair(remote_log: RemoteLogManager, root: Path) -> None:
    """Copy the second segment of refunds-0 again, in place of one that lost its data and is marked."""
    next(root.glob("state/remote/*/refunds-*/0/00000000000000000010-*.log")).unlink()
    refunds = Selection("refunds")

    def copy(copies: CopyPlan) -> CommitReport:
        job = remote_log.write_copy_job(f"{RUN}/repair", remote_log.begin_copy(copies, "yesterday"))
        for number in range(job.groups):
            job.run_group(number, remote_log.context.storage, SIZES, remote_log.context.clock)
        return remote_log.commit_copy(job.outcomes())

    plan = remote_log.repairs.plan(remote_log.checks.audit(refunds), refunds)
    remote_log.repairs.carry_out(plan, "yesterday", copy)
    remote_log.checks.audit(refunds)


if __name__ == "__main__":
    main()
