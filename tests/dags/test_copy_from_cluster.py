"""copy_segments beside a running broker: the cluster is an Airflow connection."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from dags.airflow_runs import AirflowHome
from servers.guarded_kafka import KEY_PASSWORD, PASSWORD, READER, READS, GuardedKafka
from servers.real_kafka import RealKafka
from support.airflow_home import HOME
from support.command_line import mentions, run
from support.records import varied_records
from support.shown_secrets import holds, process_list
from support.tiered_site import TIERED, TieredSite
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import SegmentState

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

TOPIC = "copied-by-a-dag"


def connect(site: TieredSite, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]) -> None:
    """Let the connection `live`, which has the properties `extra`, lead to the brokers of `site`."""
    monkeypatch.setenv("AIRFLOW_CONN_LIVE", json.dumps({"conn_type": "kafka", "extra": extra}))
    settings = {
        "cluster.connection": "live",
        "state.directory": str(site.state),
        "remote.log.deletion.grace.ms": 0,
        "topics": {TOPIC: dict(TIERED)},
    }
    site.config.write_text(yaml.safe_dump(settings))


@pytest.fixture
def live(site: TieredSite, real_kafka: RealKafka, monkeypatch: pytest.MonkeyPatch) -> RealKafka:
    """The broker, which only the connection `live` leads to."""
    extra = {"bootstrap.servers": real_kafka.bootstrap_servers, "group.id": "of-other-users-of-the-connection"}
    connect(site, monkeypatch, extra)
    return real_kafka


@pytest.fixture
def guarded(site: TieredSite, guarded_broker: GuardedKafka, monkeypatch: pytest.MonkeyPatch) -> GuardedKafka:
    """A broker that asks the connection `live` for a certificate, and for a password by SCRAM."""
    extra = guarded_broker.properties("MUTUAL", sasl_mechanism="SCRAM-SHA-512", **guarded_broker.certificate)
    connect(site, monkeypatch, extra)
    # What Spark and its workers keep for a while is looked at too.
    temporary = site.root / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    return guarded_broker


@pytest.mark.usefixtures("real_spark")
def test_runs_copy_from_a_running_broker_while_it_is_written_to_and_show_no_secret(
    airflow: AirflowHome, site: TieredSite, guarded: GuardedKafka
) -> None:
    live = guarded.kafka
    live.client.create_topic(TOPIC, 2, {"internal.segment.bytes": "16384", "segment.ms": str(1 << 60)})
    guarded.grant(TOPIC, {READER: READS})
    for number in range(2):
        live.client.produce(TOPIC, varied_records(400, seed=number), partition=number, batch_num_messages=20)

    with process_list() as shown:
        dry = airflow.run("copy_segments", {"dry_run": True})
        assert dry.state == "success", dry.messages
        first = airflow.run("copy_segments")
    assert first.state == "success", first.messages
    assert airflow.announced_by(first) == [f"{TOPIC}-0", f"{TOPIC}-1"]
    secrets = secrets_of(guarded)
    assert any(b"copy_segments.py" in arguments for arguments in shown)
    assert any(b"pyspark" in arguments for arguments in shown)
    assert not any(holds(arguments, secrets) for arguments in shown)
    assert not holds((first.log + airflow.rendered(first)).encode(), secrets)
    written = [path for home in (site.root, HOME) for path in home.rglob("*") if path.is_file()]
    assert {"job.json", "airflow.db"} <= {path.name for path in written}
    assert [path for path in written if holds(path.read_bytes(), secrets)] == []

    # From now on from the broker's files, by a worker of its host's queue.
    settings = yaml.safe_load(site.config.read_text())
    beside = {"broker.log.dirs": {"1": str(live.log_dir)}, "copy.queues": ["broker-1", "broker-2"]}
    site.config.write_text(yaml.safe_dump(settings | beside))
    airflow.refresh()
    for queue in ("broker-1", "broker-2"):
        assert {task.queue for task in airflow.dag(f"copy_segments.{queue}").tasks} == {queue}
    assert {task.queue for task in airflow.dag("copy_segments").tasks} == {"default"}
    live.client.produce(TOPIC, varied_records(400, seed=9), partition=0, batch_num_messages=20)
    second = airflow.run("copy_segments.broker-1")
    assert second.state == "success", second.messages
    assert f"{TOPIC}-0" in str(airflow.announced_by(second))

    settings = yaml.safe_load(site.config.read_text())
    site.config.write_text(yaml.safe_dump({**settings, "bootstrap.servers": live.bootstrap_servers}))
    with site.open() as remote_log:
        partitions = sorted(remote_log.context.segments.list_partitions())
        assert [str(one) for one in partitions] == [f"{TOPIC}-0", f"{TOPIC}-1"]
        for partition in partitions:
            segments = [
                one
                for one in remote_log.context.segments.list_remote_log_segments(partition)
                if one.state is SegmentState.COPY_SEGMENT_FINISHED
            ]
            ensure_of_broker(live.log_dir / str(partition), [(one.start_offset, one.end_offset) for one in segments])
    audit = run("audit", "--deep", "--config", site.config)
    assert audit.exit_code == 0, audit.out


def secrets_of(guarded: GuardedKafka) -> list[bytes]:
    """The passwords of the connection, as text, logs and encodings may have them, and the lines of its key."""
    found: list[bytes] = []
    for secret in (PASSWORD, KEY_PASSWORD):
        plain = secret.encode()
        found += [plain, quote_plus(secret).encode(), base64.b64encode(plain), plain.hex().encode()]
    key = (guarded.folder / "client.pem").read_bytes().partition(b"-----END")[0]
    return found + [line for line in key.splitlines() if len(line) == 64]


def ensure_of_broker(directory: Path, remote: list[tuple[int, int]]) -> None:
    """The segments begin and end where the broker's do, and none is left out."""
    local = [segment.base_offset for segment in list_segments(directory)]
    assert len(remote) >= 2
    assert remote == [(start, end - 1) for start, end in pairwise(local)][: len(remote)]


def test_the_broker_deletes_what_is_remote_and_readers_have_read(
    airflow: AirflowHome, site: TieredSite, live: RealKafka
) -> None:
    topic = "trimmed-by-a-dag"
    settings = yaml.safe_load(site.config.read_text())
    trimmed = {**TIERED, "local.deletion.allowed": True, "local.retention.ms": 1}
    given = {**settings, "bootstrap.servers": live.bootstrap_servers, "topics": {topic: trimmed}}
    site.config.write_text(yaml.safe_dump(given))
    live.client.create_topic(topic, 1, {"internal.segment.bytes": "16384", "segment.ms": str(1 << 60)})
    live.client.produce(topic, varied_records(600, seed=1), batch_num_messages=20)
    copied = run("copy", "--config", site.config)
    assert copied.exit_code == 0, copied.err
    ends = [segment.base_offset for segment in list_segments(live.log_dir / f"{topic}-0")][1:]
    with closing(Consumer({"bootstrap.servers": live.bootstrap_servers, "group.id": topic})) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, ends[1] - 1)], asynchronous=False)

        dry = airflow.run("enforce_local_retention", {"dry_run": True})
        assert dry.state == "success", dry.messages
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[0] == 0
        trim = airflow.run("enforce_local_retention")

        assert trim.state == "success", trim.messages
        assert f"{topic} at offset {ends[1] - 1}" in trim.log
        assert f"{topic}-0 begins locally at offset {ends[0]}" in trim.log
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[0] == ends[0]


SMALL_SEGMENTS = {"internal.segment.bytes": "16384", "segment.ms": str(7 * 24 * 3_600_000)}


def write_topics(site: TieredSite, live: RealKafka, *topics: str, **config: str) -> None:
    """Make `topics` of one partition with some closed segments, and tier them alone."""
    settings = yaml.safe_load(site.config.read_text())
    given = {"bootstrap.servers": live.bootstrap_servers, "topics": {topic: dict(TIERED) for topic in topics}}
    site.config.write_text(yaml.safe_dump(settings | given))
    named = {name.replace("_", "."): value for name, value in config.items()}
    for topic in topics:
        live.client.create_topic(topic, 1, SMALL_SEGMENTS | named)
        produce(live, topic)


def produce(live: RealKafka, topic: str) -> None:
    """Produce a few segments of records of now."""
    records = [Record(0, wall_clock(), b"key", bytes(500)) for _ in range(200)]
    live.client.produce(topic, records, batch_num_messages=10)


def test_offsets_that_brokers_deleted_before_their_copy_fail_the_run_and_others_are_copied(
    airflow: AirflowHome, site: TieredSite, live: RealKafka, spark: SparkInProcess
) -> None:
    gapped, whole, failing = "gapped-for-a-dag", "whole-for-a-dag", "failing-for-a-dag"
    write_topics(site, live, gapped, whole, failing)
    assert run("copy", "--config", site.config).exit_code == 0
    for topic in (gapped, whole):
        produce(live, topic)
    live.client.delete_records(gapped, 0, 300)

    failed = airflow.run("copy_segments")

    assert failed.state == "failed"
    assert mentions(failed.messages, f"{gapped}-0", "the brokers deleted offsets", "to 299", "copy.over.gaps"), failed
    assert f"{whole}-0" not in failed.messages
    assert airflow.announced_by(failed) == [f"{whole}-0"]

    assert run("topics", "set", gapped, "copy.over.gaps=true", "--config", site.config).exit_code == 0
    produce(live, failing)
    spark.meanwhile = partial(live.client.delete_records, failing, 0, 300)
    lossy = airflow.run("copy_segments")
    assert run("topics", "disable", failing, "--config", site.config).exit_code == 0
    later = airflow.run("copy_segments")

    assert lossy.state == "failed"
    assert lossy.tasks["all_committed"] == "upstream_failed"
    assert mentions(lossy.messages, f"{failing}-0", "OFFSET_OUT_OF_RANGE"), lossy
    assert mentions(lossy.messages, f"{gapped}-0", "to 299", "lost", "offset 300"), lossy
    assert f"{gapped}-0" in airflow.announced_by(lossy)
    assert later.state == "success"


def test_a_retention_that_was_shortened_below_the_margin_fails_the_run_which_copies_all_the_same(
    airflow: AirflowHome, site: TieredSite, live: RealKafka, spark: SparkInProcess
) -> None:
    topic, hour = "alarmed-for-a-dag", 3_600_000
    write_topics(site, live, topic, retention_ms=str(48 * hour))
    assert run("copy", "--config", site.config).exit_code == 0
    live.client.alter_topic(topic, {"retention.ms": str(12 * hour)})
    produce(live, topic)

    failed = airflow.run("copy_segments")

    assert failed.state == "failed"
    expected = (topic, "its brokers delete records", "6.0 h", "enable.min.retention.margin.ms")
    assert mentions(failed.messages, *expected), failed
    assert airflow.announced_by(failed) == [f"{topic}-0"]
