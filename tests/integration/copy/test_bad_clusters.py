"""What is wrong with a cluster is said with the setting and the remedy, and nothing is copied meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from servers.guarded_kafka import LIMITED, READS, UNREACHABLE, GuardedKafka
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.bad_clusters import AWAY, FAULTS, PATIENCE_SECONDS, SLOW_SECONDS, Fault, without_patience
from support.command_line import mentions, run
from support.live_sites import log_start
from support.records import varied_records
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

TOPIC = "orders"
UNREACHED = "unreached"
"""A topic of the broker that tests share."""
SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}


def configured(root: Path, kafka: RealKafka, **settings: object) -> Path:
    """Write the settings of a remote log of TOPIC beside `kafka`; names have _ for the dots."""
    path = root / "settings.yaml"
    given = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.directory": str(root / "state"),
        "topics": {TOPIC: {"remote.storage.enable": True}},
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    path.write_text(yaml.safe_dump(given))
    return path


def with_login(root: Path, properties: dict[str, str], *topics: str) -> Path:
    """Write the settings of a remote log of `topics` at the cluster that `properties` lead to, in a client's file."""
    login = root / "client.properties"
    servers = properties.pop("bootstrap.servers")
    login.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    login.chmod(0o600)
    given = {
        "bootstrap.servers": servers,
        "cluster.client.properties.file": str(login),
        "state.directory": str(root / "state"),
        "topics": {topic: {"remote.storage.enable": True} for topic in topics},
    }
    path = root / "settings.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def create(kafka: RealKafka, topic: str) -> None:
    kafka.client.create_topic(topic, 1, SMALL_SEGMENTS)
    kafka.client.produce(topic, varied_records(200, seed=1), batch_num_messages=20)


@pytest.fixture(scope="module")
def another(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Another cluster."""
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("another-cluster")) as started:
        yield started


def test_another_cluster_than_yesterday_is_named_until_it_is_confirmed(
    real_kafka: RealKafka, another: RealKafka, tmp_path: Path
) -> None:
    name = "copied-from-two-clusters"
    real_kafka.client.create_topic(name, 1, SMALL_SEGMENTS)
    real_kafka.client.produce(name, varied_records(200, seed=1), batch_num_messages=20)
    topics = {name: {"remote.storage.enable": True}}
    copied = run("copy", "--json", "--config", configured(tmp_path, real_kafka, topics=topics))
    assert copied.exit_code == 0, copied.err
    yesterday = real_kafka.client.cluster_id()

    another.client.create_topic(name, 1, SMALL_SEGMENTS)
    another.client.produce(name, varied_records(200, seed=2), batch_num_messages=20)
    today = another.client.cluster_id()
    config = configured(tmp_path, another, topics=topics)
    refused = run("copy", "--json", "--config", config)
    looked = run("doctor", "--config", config)
    confirmed = run("copy", "--json", "--config", configured(tmp_path, another, topics=topics, cluster_id=today))
    wrong = run("copy", "--config", configured(tmp_path, another, topics=topics, cluster_id=yesterday))

    assert (refused.exit_code, refused.rows) == (1, [])
    for result in (refused, looked):
        said = result.out + result.err
        assert result.exit_code == 1
        assert yesterday in said
        assert today in said
        assert "bootstrap.servers" in said
        assert "cluster.id" in said
    assert confirmed.exit_code == 0, confirmed.err
    assert len(confirmed.rows) == len(copied.rows)
    assert wrong.exit_code == 1
    assert f"cluster.id is {yesterday}" in wrong.out + wrong.err


def test_another_cluster_than_yesterday_deletes_nothing_in_either_tier(
    real_kafka: RealKafka, another: RealKafka, tmp_path: Path
) -> None:
    name, only_there = "deleted-from-two-clusters", "deleted-from-one-cluster"
    gone = {"retention.ms": 1, "local.retention.ms": 1, "local.deletion.allowed": True, "remote.deletion.allowed": True}
    topics = {topic: {"remote.storage.enable": True, **gone} for topic in (name, only_there)}
    for kafka, names in ((real_kafka, (name, only_there)), (another, (name,))):
        for topic in names:
            kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | {"segment.ms": str(1 << 60)})
            kafka.client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    settings = {"topics": topics, "remote.log.deletion.grace.ms": 0}
    copied = run("copy", "--json", "--config", configured(tmp_path, real_kafka, **settings))
    assert copied.exit_code == 0, copied.err

    config = configured(tmp_path, another, **settings)
    for command in ("retain", "expire"):
        refused = run(command, "--config", config)
        assert refused.exit_code == 1, refused
        yesterday, today = real_kafka.client.cluster_id(), another.client.cluster_id()
        assert mentions(refused.out + refused.err, yesterday, today, "bootstrap.servers", "cluster.id"), refused
    for kafka, topic in ((real_kafka, name), (real_kafka, only_there), (another, name)):
        assert log_start(kafka, topic) == 0
    config = configured(tmp_path, real_kafka, **settings)
    listed = run("segments", "--json", "--config", config).rows
    assert len(listed) == len(copied.rows)
    assert {row["state"] for row in listed} == {"COPY_SEGMENT_FINISHED"}

    for command in ("retain", "expire"):
        done = run(command, "--config", config)
        assert done.exit_code == 0, done
    for topic in (name, only_there):
        assert log_start(real_kafka, topic) > 0
    assert run("segments", "--json", "--config", config).rows == []
    assert log_start(another, name) == 0


def test_a_worker_whose_addresses_lead_to_another_cluster_copies_nothing_and_names_both(
    real_kafka: RealKafka, another: RealKafka, tmp_path: Path
) -> None:
    name = "meant-on-one-cluster"
    for kafka in (real_kafka, another):
        kafka.client.create_topic(name, 1, SMALL_SEGMENTS)
        kafka.client.produce(name, varied_records(200, seed=1), batch_num_messages=20)
    settings = load_settings(
        configured(tmp_path, real_kafka, topics={name: {"remote.storage.enable": True}}), environ={}
    )
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "test")
        job = remote_log.write_copy_job("runs/test/1", begun)
        access = remote_log.context.access(job.files)
        # As the worker's host resolves bootstrap.servers.
        there = replace(access.secrets, source_access={"bootstrap.servers": another.bootstrap_servers})
        copied = run_copy_groups(replace(access, secrets=there), [0])
        failures = [outcome.failure for outcome in job.outcomes()]

    assert copied == 0
    for failure in failures:
        assert failure is not None
        assert failure.error == "ConfigurationError"
    for word in (real_kafka.client.cluster_id(), another.client.cluster_id(), "bootstrap.servers"):
        assert word in str(failures[0])
    assert list((tmp_path / "state").rglob("*.log")) == []


@pytest.fixture(scope="module")
def broker(guarded_broker: GuardedKafka) -> GuardedKafka:
    """The guarded broker, with the topic."""
    create(guarded_broker.kafka, UNREACHED)
    return guarded_broker


@pytest.mark.parametrize("fault", [*FAULTS, AWAY], ids=lambda fault: fault.name)
def test_every_command_names_the_setting_that_keeps_it_from_the_cluster(
    fault: Fault, broker: GuardedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patience(monkeypatch, SLOW_SECONDS if fault is AWAY else PATIENCE_SECONDS)
    config = with_login(tmp_path, fault.properties(broker), UNREACHED)
    # The names of topics are there before any address is that a broker advertises.
    named = [["topics", "list"]] if fault is not AWAY else []
    for command in (["doctor"], ["copy"], *named):
        result = run(*command, "--config", config)

        said = " ".join((result.out + result.err).split())
        assert result.exit_code == 1, (command, said)
        assert mentions(said, *fault.words(broker)), (command, said)
        assert "guess" not in said


@pytest.fixture(scope="module")
def half_reachable(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """The first of two brokers; the second one's listener OUTSIDE answers with another address."""
    folder = tmp_path_factory.mktemp("half-reachable")
    with (
        RealKafka(kafka_programs, folder / "near", listeners={"OUTSIDE": "PLAINTEXT"}) as near,
        near.another(2, folder / "far", advertised={"OUTSIDE": UNREACHABLE}),
    ):
        yield near


def create_near_and_far(near: RealKafka, name: str) -> dict[str, dict[str, bool]]:
    """Create two topics, of one and of three partitions, one on each broker; return their settings."""
    for topic, replicas in ((f"{name}-near", [[1]]), (f"{name}-far", [[2]] * 3)):
        near.client.create_topic(topic, len(replicas), SMALL_SEGMENTS, replicas)
        for number in range(len(replicas)):
            near.client.produce(topic, varied_records(200, seed=1), partition=number, batch_num_messages=20)
    return {f"{name}-{side}": {"remote.storage.enable": True} for side in ("near", "far")}


@pytest.mark.nightly
def test_a_partition_whose_leader_advertises_an_unreachable_address_is_named_and_others_are_copied(
    half_reachable: RealKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patience(monkeypatch, SLOW_SECONDS)
    topics = create_near_and_far(half_reachable, "planned")
    config = configured(tmp_path, half_reachable, topics=topics, bootstrap_servers=half_reachable.address("OUTSIDE"))
    copied = run("copy", "--json", "--topics", "planned-.*", "--config", config)
    looked = run("doctor", "--config", config)

    assert copied.exit_code == looked.exit_code == 1
    assert {row["partition"] for row in copied.rows} == {"planned-near-0"}
    for said in (copied.err, " ".join(looked.out.split())):
        assert mentions(said, "planned-far-0", "advertised.listeners", UNREACHABLE)


@pytest.mark.nightly
@pytest.mark.timeout(100)
def test_a_leader_that_only_the_worker_does_not_reach_is_waited_for_once_and_others_are_copied(
    half_reachable: RealKafka, tmp_path: Path
) -> None:
    topics = create_near_and_far(half_reachable, "worked")
    settings = load_settings(configured(tmp_path, half_reachable, topics=topics), environ={})
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "test")
        job = remote_log.write_copy_job("runs/test/1", begun)
        access = remote_log.context.access(job.files)
        # As the worker's host sees the brokers.
        outside = {"bootstrap.servers": half_reachable.address("OUTSIDE")}
        copied = run_copy_groups(replace(access, secrets=replace(access.secrets, source_access=outside)), [0])
        ended = {str(each.task.metadata.topic_id_partition): each.failure for each in job.outcomes()}

    assert copied > 0
    assert ended.pop("worked-near-0") is None
    assert len(ended) == 3
    for name, failure in ended.items():
        assert failure is not None
        assert mentions(failure.message, name, "broker 2 advertises", "advertised.listeners", UNREACHABLE)


def test_every_right_that_a_copy_lacks_is_named_and_other_topics_are_copied(
    guarded_broker: GuardedKafka, tmp_path: Path
) -> None:
    lacking, granted = "copied-without-rights", "copied-with-rights"
    for topic in (lacking, granted):
        create(guarded_broker.kafka, topic)
    guarded_broker.grant(granted, {LIMITED: READS})
    config = with_login(tmp_path, guarded_broker.properties("SASL", sasl_username="limited"), lacking, granted)

    unseen = run("copy", "--json", "--config", config)
    assert unseen.rows
    assert {row["partition"] for row in unseen.rows} == {f"{granted}-0"}
    for right, words in (
        (AclOperation.DESCRIBE, ["--operation DescribeConfigs", f"--topic {lacking}", "(to copy, trim, expire"]),
        (AclOperation.DESCRIBE_CONFIGS, ["--operation Read", f"--topic {lacking}", "(to copy)"]),
    ):
        guarded_broker.grant(lacking, {LIMITED: (right,)})
        for command in ("doctor", "copy"):
            refused = run(command, "--config", config)
            said = " ".join((refused.out + refused.err).split())
            assert refused.exit_code == 1, (command, said)
            assert mentions(said, lacking, *words), (command, said)
    guarded_broker.grant(lacking, {LIMITED: READS})
    copied = run("copy", "--json", "--config", config)
    assert copied.exit_code == 0, copied.err
    assert {row["partition"] for row in copied.rows} == {f"{lacking}-0"}
    examined = run("doctor", "--config", config)
    assert examined.exit_code == 0, examined.out
    assert mentions(" ".join(examined.out.split()), "clock", "--operation Describe --cluster")
    guarded_broker.grant("kafka-cluster", {LIMITED: (AclOperation.DESCRIBE,)}, ResourceType.BROKER)
    assert "--cluster" not in run("doctor", "--config", config).out
