"""A copy's worker that sees another folder than the plan did, in a mount namespace of its own, as on another host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from integration.copies_beside_brokers import closed_of
from integration.mount_namespaces import python_elsewhere
from integration.stored_segments import ensure_as_stored
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.remote_log.copy.tasks import CopyOutcome

WORKER = """\
import os
import sys

from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess

_, groups, _, work_url, _, folder, _, store = sys.argv
access = JobAccess.parse(work_url, folder, store, os.environ[JOB_SECRETS])
print(run_copy_groups(access, range(int(groups))))
"""


@pytest.fixture
def site(real_kafka: RealKafka, tmp_path: Path) -> LiveSite:
    topic = f"elsewhere-{random_uuid()}"
    real_kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    real_kafka.client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    return LiveSite(real_kafka, tmp_path, (topic,), {"broker.log.dirs": f"1={real_kafka.log_dir}"})


def copied_elsewhere(site: LiveSite, shown: Path, directory: Path) -> tuple[int, list[CopyOutcome]]:
    """Copy the due segments by a worker that sees the folder `shown` as `directory`; return the copied ones."""
    python = python_elsewhere(site.root / "python-elsewhere", shown, directory)
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "elsewhere")
        job = remote_log.write_copy_job("runs/elsewhere/1", begun)
        access = remote_log.context.access(job.files)
        done = subprocess.run(
            [python, "-c", WORKER, str(job.groups), *access.arguments],
            env={**os.environ, **access.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcomes = list(job.outcomes())
        remote_log.commit_copy(outcomes)
    return json.loads(done.stdout), outcomes


def replica(site: LiveSite, folder: Path) -> Path:
    """Copy the broker's directory, with the topic's files only, to `folder`."""
    folder.mkdir()
    shutil.copy(site.kafka.log_dir / META_PROPERTIES, folder)
    shutil.copytree(site.kafka.log_dir / f"{site.topics[0]}-0", folder / f"{site.topics[0]}-0")
    return folder


def _empty(site: LiveSite, folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _of_another_broker(site: LiveSite, folder: Path) -> None:
    known = MetaProperties.read(folder / META_PROPERTIES)
    replace(known, node_id=7).write(folder / META_PROPERTIES)


def _of_another_cluster(site: LiveSite, folder: Path) -> None:
    known = MetaProperties.read(folder / META_PROPERTIES)
    replace(known, cluster_id=random_uuid()).write(folder / META_PROPERTIES)


def _without_the_partition(site: LiveSite, folder: Path) -> None:
    shutil.rmtree(folder / f"{site.topics[0]}-0")


def _of_an_earlier_topic(site: LiveSite, folder: Path) -> None:
    write_topic_id(folder / f"{site.topics[0]}-0" / PARTITION_METADATA, random_uuid())


def sent_files(site: LiveSite) -> list[Path]:
    """What the store has of the topic."""
    store = site.root / "state" / "remote"
    return [path for path in store.rglob("*") if site.topics[0] in str(path) and path.is_file()]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_empty, "has no meta.properties"),
        (_of_another_broker, "is of broker 7"),
        (_of_another_cluster, "is of the cluster"),
        (_without_the_partition, "broker.log.dirs"),
        (_of_an_earlier_topic, "is of the topic id"),
    ],
)
def test_a_worker_that_sees_another_folder_names_it_and_sends_nothing(
    site: LiveSite, change: Callable[[LiveSite, Path], None], reason: str
) -> None:
    shown = replica(site, site.root / "shown")
    change(site, shown)

    copied, outcomes = copied_elsewhere(site, shown, site.kafka.log_dir)

    assert copied == 0
    assert len(outcomes) > 1
    for outcome in outcomes:
        assert outcome.failure is not None
        assert mentions(outcome.failure.message, reason)
        assert str(site.kafka.log_dir) in outcome.failure.message
    assert sent_files(site) == []
    assert len(site.copied()) == ensure_as_stored(site) > 1
    assert sent_files(site) != []


def test_a_worker_that_sees_an_earlier_state_of_the_folder_sends_what_the_broker_has(site: LiveSite) -> None:
    """A snapshot of the disk has the same properties. What it lacks is fetched from the broker."""
    [topic] = site.topics
    shown = replica(site, site.root / "shown")
    seen = closed_of(shown / f"{topic}-0")
    site.kafka.client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)

    copied, outcomes = copied_elsewhere(site, shown, site.kafka.log_dir)

    assert [outcome.failure for outcome in outcomes if outcome.failure is not None] == []
    assert copied == len(outcomes) > len(seen)
    site.copied()
    assert ensure_as_stored(site, indexes=False) > len(seen)
    site.audited()


def test_a_copy_needs_no_right_to_write_to_the_folder(site: LiveSite) -> None:
    folder = site.kafka.log_dir
    python = python_elsewhere(site.root / "read-only-python", folder, folder, is_read_only=True)
    refused = subprocess.run([python, "-c", f"open({str(folder / '.lock')!r}, 'r+')"], capture_output=True, check=False)
    assert b"Read-only" in refused.stderr

    command = [str(python), "-m", "tiered_storage.cli.main", "copy", "--config", str(site.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert ensure_as_stored(site) == len(closed_of(folder / f"{site.topics[0]}-0")) > 1
