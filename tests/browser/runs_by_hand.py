"""Manual work in Airflow's pages: look at a plan, handle a failed run, stop deletions, restore a topic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from browser.backfills import LAST_WINDOW
from browser.past_log import PARTITIONS, closed_by
from browser.stage import COPY, RUN_WITHIN, Committed, Stage
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage_airflow.embedded.api_client import DagRun
from tiered_storage_airflow.embedded.processes import wait_until

DAMAGED = PARTITIONS[1]
SHORTENED = PARTITIONS[2]
STUCK_AFTER_MS = 35_000
DOUBT = "The bill of the bucket looks wrong"
RESTORED = "orders"
_SPARK_LAUNCHER = "org.apache.spark.launcher.Main"
"""It only names the command for Spark, which nothing here would end."""


@dataclass(frozen=True, slots=True)
class Red:
    """A run that failed: what it committed, and what its failed tasks said."""

    run: DagRun
    committed: Committed
    failures: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """A copy that was given up: what its first try said, how many tries it took, and what they committed."""

    first_try: str
    tries: int
    committed: Committed


@dataclass(frozen=True, slots=True)
class Stopped:
    """A deletion while all are stopped, and whether any object went; the same once they were allowed again."""

    red: Red
    kept: bool
    after_lift: DagRun


def dry_run(stage: Stage) -> Committed:
    """Ask for a dry run in the form; return what it committed, which should be nothing."""
    button = stage.pages.fill_trigger_form(COPY, {"topics": "orders|payments"}, ["dry_run"])
    stage.pages.picture("trigger-form", height=1330)
    run = stage.run_by_form(COPY, button, "by_hand_dry_run")
    stage.pages.open_log(COPY, run.run_id, "plan", "are due")
    stage.pages.picture("dry-run", height=640)
    return stage.committed(run)


def stuck_copy(stage: Stage) -> Stuck:
    """Stop Spark, as a hanging disk does, until the copy gives it up; its second try succeeds."""
    button = stage.pages.fill_trigger_form(COPY, {"topics": "orders", "partitions": "0", "max_segments": "1"})
    with stage.changed_settings({"copy.stuck.after.ms": STUCK_AFTER_MS}):
        stage.pages.name_run("by_hand_one_segment")
        stage.pages.submit(button)
        run = stage.api.run(COPY, "by_hand_one_segment")
        _spark_below(stage.root).suspend()
        if not wait_until(lambda: stage.task(run, "copy").state == "up_for_retry", RUN_WITHIN, interval=1):
            raise TimeoutError(f"the copy of a suspended Spark has not been given up in {RUN_WITHIN:.0f} s")
    first_try = stage.api.task_log(stage.task(run, "copy"))
    stage.pages.open_log(COPY, run.run_id, "copy", "so far:")
    stage.pages.fold_errors("Exception")
    stage.pages.fold_errors("CopyStuckError")
    stage.pages.picture("stuck-copy", height=860)
    run = stage.api.wait_for_run(run, RUN_WITHIN)
    stage.expect_state(run, "success")
    return Stuck(first_try, stage.task(run, "copy").try_number, stage.committed(run))


def damaged_segment(stage: Stage) -> Red:
    """Damage a segment that was not copied yet, and ask for a run of all topics."""
    directory = stage.log_directory / str(DAMAGED)
    segment = list_segments(directory)[closed_by(DAMAGED, stage.start, stage.window_end(LAST_WINDOW))]
    content = bytearray(segment.log_path.read_bytes())
    content[len(content) // 2] ^= 1
    segment.log_path.write_bytes(content)
    run = stage.run_by_form(COPY, stage.pages.fill_trigger_form(COPY), "by_hand", "failed")
    stage.show_failure(run, "CorruptRecordError")
    stage.pages.picture("red-run", height=640)
    return _red(stage, run)


def stopped_deletions(stage: Stage) -> Stopped:
    """Stop all deletions and request one; lift the stop and request it again."""
    dag_id, stop = "delete_records", "stop_deletions"
    stage.api.unpause(dag_id)
    stage.api.unpause(stop)
    button = stage.pages.fill_trigger_form(stop, {"reason": DOUBT})
    stage.pages.picture("stop-form", height=1010)
    stage.run_by_form(stop, button, "a_doubt")
    before = stage.remote().objects

    asked = {"topic": SHORTENED.topic, "partition": SHORTENED.partition, "before": SHORTENED.segment_records}
    words = {name: str(value) for name, value in asked.items()}
    refused = stage.run_by_form(dag_id, stage.pages.fill_trigger_form(dag_id, words, ["dry_run"]), "refused", "failed")
    stage.show_failure(refused, "DeletionRefusedError")
    stage.pages.picture("stopped-deletion", height=640)
    kept = stage.remote().objects == before

    stage.run_by_form(stop, stage.pages.fill_trigger_form(stop, {"reason": "It was not"}, ["lift"]), "no_doubt")
    button = stage.pages.fill_trigger_form(dag_id, words, ["dry_run"])
    return Stopped(_red(stage, refused), kept, stage.run_by_form(dag_id, button, "allowed"))


def restored_topic(stage: Stage) -> Path:
    """Bring a topic back into a log directory that is new; return the directory."""
    dag_id, directory = "restore_topic", stage.root / "restored-logs"
    stage.api.unpause(dag_id)
    # A copy after the damaged segment is in the store, and no part of the topic.
    button = stage.pages.fill_trigger_form(dag_id, {"topic": RESTORED}, ["dry_run", "allow_gaps"])
    stage.pages.picture("restore-form", height=1245)
    with stage.changed_settings({"restore.directory": str(directory)}):
        run = stage.run_by_form(dag_id, button, "bring_orders_back")
    stage.pages.open_log(dag_id, run.run_id, "restore", "restored ")
    stage.pages.picture("restored", height=640)
    return directory


def connection_form(stage: Stage) -> None:
    """Fill the form of our own connection type in."""
    fields = {"endpoint_url": "https://minio.example:9000", "region_name": "eu-central-1"}
    stage.pages.fill_connection_form("Remote storage (Remote Log)", fields)
    stage.pages.picture("connection-form", height=910)


def _spark_below(root: Path) -> psutil.Process:
    """Return the JVM of the Spark job that works below `root`, once there is one."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found[:] = [one for one in psutil.process_iter(["name", "cmdline"]) if _is_spark(one, root)]
        return bool(found)

    if not wait_until(is_there, RUN_WITHIN, interval=0.1):
        raise TimeoutError(f"no Spark job has begun in {RUN_WITHIN:.0f} s")
    return found[0]


def _is_spark(process: psutil.Process, root: Path) -> bool:
    words = process.info["cmdline"] or ()
    is_driver = process.info["name"] == "java" and _SPARK_LAUNCHER not in words
    return is_driver and any(str(root) in word for word in words)


def _red(stage: Stage, run: DagRun) -> Red:
    return Red(run, stage.committed(run), stage.api.failures(run))
