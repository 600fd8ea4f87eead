"""Three brokers under load are killed and moved: every acknowledged record ends up in the tiers once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from integration.broker_faults import (
    add_partitions,
    by_fetch,
    ensure_as_their_leader,
    kill_copies,
    kill_one_by_one,
    lose_all_checkpoints,
    lose_checkpoints_of_a_leader,
    move_leaders,
    of_files,
    reassign,
    throttle,
    wait_for_replicas,
)
from integration.transactional_load import TransactionalProducer
from servers.kafka_programs import KafkaPrograms
from support.command_line import mentions
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveCluster, producer
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import NODES, REQUEST_SECONDS, BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place, judge, read_local, read_remote
from tiered_storage_airflow.demo_cluster.load import LoadConsumer

nightly = pytest.mark.nightly
TIERED = {"remote.storage.enable": True}
TRIMMED = {**TIERED, "local.deletion.allowed": True, "local.retention.ms": 1}
PASSWORD = "throw-away"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PROPERTIES = {
    "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.guarded.plain.sasl.jaas.config": f'{_PLAIN} required user_remote-log="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers of these tests alone, all running before and after each."""
    folder = tmp_path_factory.mktemp("three-brokers")
    with BrokerCluster(kafka_programs, folder, PROPERTIES, {"GUARDED": "SASL_PLAINTEXT"}) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name, of the test's own."""
    name = str(request.node.name).removeprefix("test_").replace("[", "-").rstrip("]")
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:100]


@pytest.fixture
def site(brokers: BrokerCluster, tmp_path: Path, topic: str) -> LiveCluster:
    """A remote log of the topic."""
    return LiveCluster(brokers, tmp_path, (topic,)).write()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.csv")


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_when_a_leader_is_killed_and_partitions_are_added(
    brokers: BrokerCluster, site: LiveCluster, topic: str, ledger: Ledger
) -> None:
    brokers.create_topic(topic, 2, SMALL_SEGMENTS)
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        copies.wait_for_segments()
        killed = brokers.leader(topic, 0)
        brokers.kill(killed)
        copies.wait_for_segments(2)
        add_partitions(brokers, topic, 3)
        brokers.start(killed)
        wait_for(lambda: len(site.partitions()) == 3, lambda: str(copies.results[-3:]))

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


SHARED_FAULTS = (kill_one_by_one, move_leaders, reassign, kill_copies, lose_checkpoints_of_a_leader)
FAULTS = [
    *((by_fetch, fault) for fault in (*SHARED_FAULTS, throttle)),
    *((of_files, fault) for fault in SHARED_FAULTS),
]


@nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("source", "fault"), FAULTS, ids=lambda each: each.__name__)
def test_every_acknowledged_record_is_in_the_tiers_once_after(
    brokers: BrokerCluster,
    tmp_path: Path,
    topic: str,
    ledger: Ledger,
    source: Callable[[BrokerCluster], Mapping[str, Any]],
    fault: Callable[[BrokerCluster, str, CopyLoop], None],
) -> None:
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), source(brokers)).write()
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        copies.wait_for_segments()
        fault(brokers, topic, copies)
        copies.wait_for_segments()

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", [by_fetch, of_files], ids=lambda each: each.__name__)
def test_brokers_that_all_came_back_without_their_checkpoint_files_are_copied_on(
    brokers: BrokerCluster,
    tmp_path: Path,
    topic: str,
    ledger: Ledger,
    source: Callable[[BrokerCluster], Mapping[str, Any]],
) -> None:
    """Nothing is sent while they are away."""
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), source(brokers)).write()
    with CopyLoop(site) as copies:
        with producer(site, topic, ledger):
            copies.wait_for_segments(3)
        lose_all_checkpoints(brokers)
        with producer(site, topic, ledger):
            copies.wait_for_segments(3)

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@nightly
@pytest.mark.timeout(600)
def test_committed_transactions_are_in_the_tiers_once_after_their_leader_was_killed(
    brokers: BrokerCluster, site: LiveCluster, topic: str, ledger: Ledger
) -> None:
    brokers.create_topic(topic, 1, SMALL_SEGMENTS)
    with CopyLoop(site) as copies, TransactionalProducer(site, topic, ledger) as transactions:
        for _ in range(2):
            copies.wait_for_segments(2)
            killed = brokers.leader(topic, 0)
            brokers.kill(killed)
            copies.wait_for_segments(2)
            brokers.start(killed)
            wait_for_replicas(brokers, topic)

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)
    assert transactions.aborted
    read = {key for tier in (_remote(site), _local(brokers, topic)) for keys in tier.values() for key in keys}
    assert read.isdisjoint(transactions.aborted), transactions.failures


@nightly
@pytest.mark.timeout(600)
def test_an_unclean_leader_is_followed_and_what_it_lost_is_not_served(
    brokers: BrokerCluster, site: LiveCluster, topic: str, ledger: Ledger
) -> None:
    unclean = {**SMALL_SEGMENTS, "unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    brokers.create_topic(topic, 1, unclean, [[1, 2]])
    with CopyLoop(site) as copies:
        with producer(site, topic, ledger):
            copies.wait_for_segments()
            # From here on only broker 1 has the records, and some of them are copied.
            brokers.kill(2)
            copies.wait_for_segments(3)
        copies.wait_for_segments(0)
    site.catch_up()
    remote_end = len(_remote(site))
    brokers.kill(1)
    brokers.start(2)
    wait_for(lambda: brokers.leader(topic, 0) == 2, lambda: "broker 2 does not lead")
    brokers.start(1)
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        wait_for(lambda: len(_local(brokers, topic)) > remote_end + 200, lambda: "nothing is written")
        copies.wait_for_segments(2)
    site.catch_up()

    ensure_as_their_leader(site, ledger, topic)


@nightly
@pytest.mark.timeout(600)
def test_a_topic_that_is_deleted_and_created_again_under_load_has_a_log_of_its_own(
    brokers: BrokerCluster, topic: str, ledger: Ledger, tmp_path: Path
) -> None:
    brokers.create_topic(topic, 2, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), {"remote.log.replaced.topic.grace.ms": 0}).write()
    with CopyLoop(site, "expire") as runs, producer(site, topic, ledger):
        runs.wait_for_segments(2)
        former = _incarnations(site)
        of_former = _delete(brokers, topic, ledger)
        brokers.create_topic(topic, 2, SMALL_SEGMENTS)
        wait_for(lambda: len(_incarnations(site)) == 2, lambda: str(runs.results[-2:]))
        [new] = _incarnations(site) - former
        # Nobody has allowed that it is deleted.
        with site.open() as remote_log:
            kept = read_remote(remote_log, [each for each in site.partitions() if each.topic_id in former])
        counts = judge(of_former, kept, {})[topic]
        assert counts.remote > 0
        assert counts.twice == 0

        allowed = site.run("topics", "allow-deletion", topic, "--only", "remote")
        assert allowed.exit_code == 0, allowed.err
        wait_for(lambda: _stored(site, topic) == {new}, lambda: str(runs.others["expire"][-2:]))
        runs.wait_for_segments(2)
    site.catch_up()

    of_new = Ledger(tmp_path / "again.csv")
    for key in ledger.acknowledged().keys() - of_former.keys():
        of_new.acknowledge(key, ledger.acknowledged()[key])
    site.ensure_exactly_once(of_new, topic, new)
    assert _stored(site, topic) == {new}


def _delete(brokers: BrokerCluster, topic: str, ledger: Ledger) -> dict[bytes, Place]:
    """Delete a topic that is written to, on every broker; return which of its records had been acknowledged."""
    admin = brokers.admin()
    admin.delete_topics([topic])[topic].result(REQUEST_SECONDS)
    # Until its files are removed, those of a deleted partition have another name.
    wait_for(
        lambda: not any(list(brokers.log_dir(node).glob(f"{topic}-[01]")) for node in NODES), lambda: "not deleted"
    )
    counts: list[int] = []

    def nothing_more_is_acknowledged() -> bool:
        counts.append(len(ledger))
        return counts[-20:] == [len(ledger)] * 20

    wait_for(nothing_more_is_acknowledged, lambda: "records of a deleted topic are acknowledged")
    return ledger.acknowledged()


def _incarnations(site: LiveCluster) -> set[str]:
    return {each.topic_id for each in site.partitions()}


def _stored(site: LiveCluster, topic: str) -> set[str]:
    """Return the topic ids under which the store has segments of a topic."""
    folders = {path.parents[1].name for path in (site.root / "state").rglob("*.log")}
    return {name.removeprefix(f"{topic}-") for name in folders if name.startswith(topic)}


def _acl(name: str, operation: AclOperation, kind: ResourceType) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:remote-log", "*", operation, AclPermissionType.ALLOW
    )


def _grant(admin: AdminClient, name: str, *operations: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
    for each in admin.create_acls([_acl(name, operation, kind) for operation in operations]).values():
        each.result(REQUEST_SECONDS)


def _withdraw(admin: AdminClient, name: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
    wanted = AclBindingFilter(
        kind, name, ResourcePatternType.LITERAL, "User:remote-log", "*", operation, AclPermissionType.ALLOW
    )
    for each in admin.delete_acls([wanted]).values():
        each.result(REQUEST_SECONDS)


def _guarded(
    brokers: BrokerCluster, root: Path, topics: tuple[str, ...], decided: Mapping[str, Any] = TIERED
) -> LiveCluster:
    """Return a remote log of `topics` whose login has only the rights that it was granted."""
    properties = root / "client.properties"
    properties.write_text(
        f"security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=remote-log\nsasl.password={PASSWORD}\n"
    )
    properties.chmod(0o600)
    settings = {
        "bootstrap.servers": brokers.addresses("GUARDED"),
        "cluster.client.properties.file": str(properties),
        "topics": {topic: dict(decided) for topic in topics},
    }
    return LiveCluster(brokers, root, topics, settings).write()


TRIMMING = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE)
TO_SEE_GROUPS = {
    (ResourceType.BROKER, "kafka-cluster"): "--operation Describe --cluster",
    (ResourceType.TOPIC, "__consumer_offsets"): "--operation Describe --topic __consumer_offsets",
    (ResourceType.GROUP, "*"): "--operation Describe --group '*'",
}
"""What must be described to know what all groups have read, and how the right is granted."""


@nightly
@pytest.mark.timeout(900)
def test_a_withdrawn_right_to_see_groups_stops_every_trim_until_it_is_given_back(
    brokers: BrokerCluster, tmp_path: Path, topic: str, ledger: Ledger
) -> None:
    admin, client = brokers.admin(), {"bootstrap.servers": brokers.bootstrap_servers, "group.id": topic}
    brokers.create_topic(topic, 1, SMALL_SEGMENTS)
    _grant(admin, topic, *TRIMMING)
    for kind, name in TO_SEE_GROUPS:
        _grant(admin, name, AclOperation.DESCRIBE, kind=kind)
    site = _guarded(brokers, tmp_path, (topic,), TRIMMED)
    with (
        CopyLoop(site, "retain") as runs,
        producer(site, topic, ledger),
        LoadConsumer([topic], client) as consumer,
    ):
        runs.wait_for_trims()
        for (kind, name), granted in TO_SEE_GROUPS.items():
            _withdraw(admin, name, AclOperation.DESCRIBE, kind)
            assert granted in runs.wait_for_exit(1, of="retain").err
            starts = site.log_starts(topic, 1)
            for _ in range(2):
                assert granted in runs.wait_for_exit(1, of="retain").err
            assert site.log_starts(topic, 1) == starts
            _grant(admin, name, AclOperation.DESCRIBE, kind=kind)
            runs.wait_for_trims()
            assert site.log_starts(topic, 1)[0] > starts[0]

    assert consumer.keys
    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@nightly
@pytest.mark.timeout(900)
def test_a_withdrawn_right_to_delete_stops_the_trims_of_its_topic_alone(
    brokers: BrokerCluster, tmp_path: Path, topic: str, ledger: Ledger
) -> None:
    other, admin = f"{topic}-other", brokers.admin()
    for name in (topic, other):
        brokers.create_topic(name, 1, SMALL_SEGMENTS)
        _grant(admin, name, *TRIMMING)
    for kind, name in TO_SEE_GROUPS:
        _grant(admin, name, AclOperation.DESCRIBE, kind=kind)
    site = _guarded(brokers, tmp_path, (topic, other), TRIMMED)
    others = Ledger(tmp_path / "others.csv")
    with CopyLoop(site, "retain") as runs, producer(site, topic, ledger), producer(site, other, others):
        runs.wait_for_trims(2)
        _withdraw(admin, topic, AclOperation.DELETE)
        retained = runs.others["retain"]
        wait_for(lambda: retained[-1].exit_code == 1, lambda: str(retained[-2:]))
        assert mentions(retained[-1].err, f"{topic}-0", "right Delete", f"--topic {topic}"), retained[-1]
        starts = site.log_starts(topic, 1)
        # Of the other topic.
        runs.wait_for_trims()
        assert site.log_starts(topic, 1) == starts
        _grant(admin, topic, AclOperation.DELETE)
        runs.wait_for_trims(2)
        assert site.log_starts(topic, 1)[0] > starts[0]

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)
    site.ensure_exactly_once(others, other)


@nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE])
def test_a_right_that_is_withdrawn_stops_its_topic_alone_until_it_is_given_back(
    brokers: BrokerCluster, tmp_path: Path, topic: str, ledger: Ledger, operation: AclOperation
) -> None:
    other, admin = f"{topic}-other", brokers.admin()
    for name in (topic, other):
        brokers.create_topic(name, 1, SMALL_SEGMENTS)
        _grant(admin, name, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    site = _guarded(brokers, tmp_path, (topic, other))
    others = Ledger(tmp_path / "others.csv")
    with CopyLoop(site) as copies, producer(site, topic, ledger), producer(site, other, others):
        wait_for(lambda: copies.partitions == {f"{topic}-0", f"{other}-0"}, lambda: str(copies.results[-2:]))
        _withdraw(admin, topic, operation)
        if operation is AclOperation.DESCRIBE:
            # Read and DescribeConfigs imply it.
            _withdraw(admin, topic, AclOperation.READ)
            _withdraw(admin, topic, AclOperation.DESCRIBE_CONFIGS)
        # A topic out of sight may have been deleted: that is no error.
        is_hidden = operation is AclOperation.DESCRIBE
        refused = copies.wait_for_exit(0 if is_hidden else 1)
        # Of the other topic.
        copies.wait_for_segments(2)
        seen = site.run("plan") if is_hidden else refused
        said = seen.out + seen.err
        assert ("no longer shows" if is_hidden else "kafka-acls.sh --add") in said, said
        _grant(admin, topic, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        copies.wait_for_exit(0)

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)
    site.ensure_exactly_once(others, other)


@nightly
@pytest.mark.timeout(900)
def test_partitions_without_a_leader_hold_the_others_up_no_longer_than_one_call(
    brokers: BrokerCluster, tmp_path: Path, topic: str, ledger: Ledger
) -> None:
    alone = f"{topic}-alone"
    brokers.create_topic(topic, 1, SMALL_SEGMENTS)
    brokers.create_topic(alone, 1, SMALL_SEGMENTS, [[3]])
    site = LiveCluster(brokers, tmp_path, (topic, alone)).write()
    of_alone = Ledger(tmp_path / "alone.csv")
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        with producer(site, alone, of_alone):
            wait_for(lambda: len(site.partitions()) == 2, lambda: str(copies.results[-2:]))
        brokers.kill(3)
        copies.wait_for_segments()
        failed = copies.wait_for_exit(1, 400)
        assert f"{alone}-0" in failed.out + failed.err
        brokers.start(3)

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)
    site.ensure_exactly_once(of_alone, alone)


def _remote(site: LiveCluster) -> dict[Place, Sequence[bytes]]:
    with site.open() as remote_log:
        return dict(read_remote(remote_log))


def _local(brokers: BrokerCluster, topic: str) -> dict[Place, Sequence[bytes]]:
    return dict(read_local({"bootstrap.servers": brokers.bootstrap_servers}, [topic]))
