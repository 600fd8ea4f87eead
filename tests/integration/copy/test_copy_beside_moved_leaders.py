"""Each partition is copied beside its leader, though leaders and replicas move."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.copies_beside_brokers import SECONDS, closed_of, each_copied, leader_of, up_to
from integration.stored_segments import read
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.remote_log.copy.tasks import CopyTask
from tiered_storage.remote_log.read.read_values import Isolation

PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture
def brokers(kafka_programs: KafkaPrograms, tmp_path: Path) -> Iterator[tuple[RealKafka, RealKafka, Path]]:
    """Two brokers; the second one has another log directory besides."""
    first = RealKafka(kafka_programs, tmp_path / "1", properties=PROPERTIES)
    more = tmp_path / "2-more"
    with first:
        dirs = f"{tmp_path / '2' / 'log-dir'},{more}"
        second = first.another(2, tmp_path / "2", {**PROPERTIES, "log.dirs": dirs})
        more.mkdir()
        MetaProperties(1, first.client.cluster_id(), 2, random_uuid()).write(more / META_PROPERTIES)
        with second:
            yield first, second, more


def replicated(kafka: RealKafka, topic: str, leaders: tuple[int, ...], config: Mapping[str, str]) -> None:
    """Create a topic on both brokers, with these preferred leaders of its partitions."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assignment = [[leader, 3 - leader] for leader in leaders]
    new = NewTopic(topic, len(leaders), replica_assignment=assignment, config=dict(config))
    admin.create_topics([new], operation_timeout=SECONDS)[topic].result(SECONDS)


def test_each_partition_is_copied_beside_its_leader_wherever_that_moves(
    brokers: tuple[RealKafka, RealKafka, Path], tmp_path: Path
) -> None:
    first, second, more = brokers
    topic = "moved"
    replicated(first, topic, (1, 2, 2), SMALL_SEGMENTS | LONG)
    for partition in range(3):
        first.client.produce(topic, varied_records(400, seed=partition), partition=partition, acks="all",
                             batch_num_messages=20)  # fmt: skip
    of_second = (second.log_dir, more)
    directories = {"1": [str(first.log_dir)], "2": [str(each) for each in of_second]}
    site = LiveSite(first, tmp_path, (topic,), {"broker.log.dirs": directories})

    # A host that sees the files of broker 2 alone leaves the rest to another.
    alone = replace(site, settings={"broker.log.dirs": {**directories, "1": [str(tmp_path / "elsewhere")]}})
    result = alone.run("copy", "--json")
    assert result.exit_code == 0, result.err
    assert {row["partition"] for row in result.rows} == {f"{topic}-1", f"{topic}-2"}
    assert f"{topic}-0" in result.out + result.err
    assert str(tmp_path / "elsewhere") in result.out + result.err

    for partition in range(3):
        first.client.produce(topic, varied_records(400, seed=9), partition=partition, acks="all", batch_num_messages=20)
    roots: dict[int, set[Path]] = {}

    def note(known: CopyTask) -> None:
        roots.setdefault(known.metadata.topic_id_partition.partition, set()).add(Path(known.location).parents[1])

    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "moved")
        outcomes = each_copied(remote_log, begun.tasks, note)
        second.kill()
        wait_for(
            lambda: {leader_of(first, topic, each) for each in range(3)} == {1},
            lambda: "broker 1 does not lead",
            SECONDS,
        )
        report = remote_log.commit_copy(outcomes)
    assert roots[0] == {first.log_dir}
    assert roots[1] | roots[2] == set(of_second)
    assert {segment.topic_id_partition.partition for segment in report.committed} == {0}
    assert len(report.failures) == 2
    for failure in report.failures:
        assert mentions(failure.message, "broker 2", "broker 1 leads")

    while site.copied():
        pass

    for partition in range(3):
        with site.open() as remote_log:
            copies = finished(remote_log, partition)
        assert [(one.start_offset, one.end_offset) for one in copies] == closed_of(
            first.log_dir / f"{topic}-{partition}"
        )
    site.audited()


@pytest.mark.nightly
def test_a_replica_is_copied_on_while_its_broker_moves_it_to_another_directory(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    topic, places = "altered", [tmp_path / "broker" / "log-dir", tmp_path / "broker" / "more"]
    joined = ",".join(map(str, places))
    with RealKafka(kafka_programs, tmp_path / "broker", properties={"log.dirs": joined}) as kafka:
        site = LiveSite(kafka, tmp_path, (topic,), {"broker.log.dirs": f"1={joined}"})
        kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
        sent = kafka.client.produce(topic, varied_records(3000, seed=1), batch_num_messages=20)
        site.copied("--max-segments", 5)
        [before] = [each for each in places if (each / f"{topic}-0").exists()]
        [target] = [each for each in places if each != before]
        moves = tmp_path / "moves.json"
        wanted = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
        moves.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        command = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        options = ["--bootstrap-server", kafka.bootstrap_servers, "--reassignment-json-file", str(moves), "--execute"]
        moving = Thread(target=lambda: kafka.tool(command, *options))
        moving.start()
        deadline = time.monotonic() + SECONDS
        while not (target / f"{topic}-0").exists():
            assert time.monotonic() < deadline
            sent += kafka.client.produce(topic, varied_records(40, seed=len(sent)), batch_num_messages=20)
            # What is under way when the files move is left to the next run, and named.
            result = site.run("copy", "--max-segments", 1)
            assert result.exit_code == 0 or "next run looks again" in result.out + result.err
        moving.join()
        sent += kafka.client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
        while site.copied():
            pass

        with site.open() as remote_log:
            copies = [(one.start_offset, one.end_offset) for one in finished(remote_log)]
        assert copies == closed_of(target / f"{topic}-0")
        assert read(site, Isolation.READ_UNCOMMITTED) == up_to(sent, copies[-1][1])
        site.audited()
