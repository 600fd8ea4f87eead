"""Airflow's scheduler and a leader are killed at once, amid scheduled copies and trims of a cluster under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashes.airflow_parts import STORAGE, HaltingAirflow, halting_airflow
from crashes.crash_points import CrashPoint
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, LiveCluster, producer
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger

TOPIC = "orders"
SECONDS = 600
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
SCHEDULES = {
    "copy_segments": 'CronDataIntervalTimetable("* * * * *", timezone="UTC")',
    "enforce_local_retention": "lambda cluster: [cluster.remote_log]",
}
AMID = [(None, CrashPoint.AFTER_DATA), ("commit_metadata", CrashPoint.AFTER_FINISHED),
        ("trim", CrashPoint.AFTER_DELETE_RECORDS)]  # fmt: skip
"""Where the scheduler is killed: while this task, or the worker of a copy, has done a part of its work."""


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_killed_schedulers_and_killed_leaders_lose_and_double_nothing(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.csv")
    with BrokerCluster(kafka_programs, tmp_path / "kafka") as brokers:
        brokers.create_topic(TOPIC, 3, SMALL_SEGMENTS)
        settings = {
            "topics": {TOPIC: TRIMMED},
            "scheduled.deletion.enable": True,
            "remote.log.storage.manager.class.name": STORAGE,
        }
        site = LiveCluster(brokers, tmp_path, (TOPIC,), settings).write()
        with halting_airflow(HaltingAirflow, tmp_path, site.config, tuple(SCHEDULES), SCHEDULES) as airflow:
            with producer(site, TOPIC, ledger):
                wait_for_trims(site)
                for task_id, point in AMID:
                    airflow.halt_next(task_id, point)
                    halted = airflow.wait_for_halted()
                    leader = brokers.leader(TOPIC, 0)
                    airflow.kill_scheduler()
                    brokers.kill(leader)
                    airflow.restart_scheduler()
                    airflow.let_proceed(halted)
                    brokers.start(leader)
                    wait_for_trims(site)
            wait_for(lambda: has_caught_up(site), lambda: f"{site.run('plan')} {site.log_starts(TOPIC)}", SECONDS)

            counts = site.ensure_exactly_once(ledger, TOPIC)
            assert counts.remote > counts.local


def wait_for_trims(site: LiveCluster) -> None:
    """Wait until scheduled runs have copied something of each partition, and trimmed it at the brokers."""
    before = site.log_starts(TOPIC)
    wait_for(
        lambda: all(start > before[number] for number, start in site.log_starts(TOPIC).items()),
        lambda: f"the log starts are still {before}",
        SECONDS,
    )


def has_caught_up(site: LiveCluster) -> bool:
    """Whether scheduled runs have left nothing to copy and nothing to trim."""
    planned = site.run("plan", "--json")
    return (planned.exit_code, planned.rows) == (0, []) and site.log_starts(TOPIC) == site.remote_ends()
