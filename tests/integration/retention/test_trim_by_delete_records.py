"""Local retention beside a running broker: it deletes remote, verified, consumed records, and no remote data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import ShareConsumer

from integration.stored_segments import read
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.kafka_clients import REQUEST_SECONDS, send
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished, log_start
from support.records import varied_records
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.metadata import Group
from tiered_storage.remote_log.model import RemoteLogSegmentMetadataUpdate, SegmentState
from tiered_storage.remote_log.read.read_values import Isolation

PASSWORD = "throw-away"
USER = "remote-log"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_GUARDED = {
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": f'{_PLAIN} required user_{USER}="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
"""The records of these tests are years old: all are due."""


@pytest.fixture(scope="module")
def kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker of these tests alone: its groups are theirs. Its listener SASL asks for rights."""
    folder = tmp_path_factory.mktemp("trimmed-kafka")
    with RealKafka(kafka_programs, folder, properties=_GUARDED, listeners={"SASL": "SASL_PLAINTEXT"}) as started:
        yield started


@pytest.fixture
def site(kafka: RealKafka, tmp_path: Path, request: pytest.FixtureRequest) -> LiveSite:
    """A site of one topic, which the test makes, with the right to delete locally."""
    topic = request.node.name.partition("[")[0].removeprefix("test_")[:80]
    return LiveSite(kafka, tmp_path, (topic,), {"topics": {topic: TRIMMED}})


def filled(site: LiveSite, count: int = 1000, partitions: int = 1) -> list[tuple[int, int]]:
    """Make the topic, produce to it, and copy; return the first and last offsets of the segments of partition 0."""
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, partitions, SMALL_SEGMENTS | LONG)
    for partition in range(partitions):
        client.produce(topic, varied_records(count, seed=partition), partition=partition, batch_num_messages=20)
    while site.copied():
        pass
    return remote(site)


def remote(site: LiveSite, partition: int = 0) -> list[tuple[int, int]]:
    with site.open() as remote_log:
        return [(one.start_offset, one.end_offset) for one in finished(remote_log, partition)]


def begins(site: LiveSite, partition: int = 0, topic: str | None = None) -> int:
    """The broker's log start."""
    return log_start(site.kafka, topic or site.topics[0], partition)


def commit(site: LiveSite, group: str, offset: int) -> None:
    """Let a group commit an offset, as one that is not active any more."""
    with closing(Consumer({"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": group})) as consumer:
        consumer.commit(offsets=[TopicPartition(site.topics[0], 0, offset)], asynchronous=False)


def forget(site: LiveSite, *groups: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers, "log_level": 4})
    for future in admin.delete_consumer_groups(list(groups)).values():
        future.result(REQUEST_SECONDS)


def with_settings(site: LiveSite, **properties: object) -> LiveSite:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return replace(site, settings={**site.settings, **named})


def test_only_the_broker_deletes_records_that_are_due_and_remote(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    segments = filled(site)
    end = segments[-1][1] + 1
    sent = client.consume_all(topic)

    dry = site.run("retain", "--dry-run", "--json")
    assert dry.exit_code == 0, dry.err
    assert [(row["new_local_start"], row["segments"]) for row in dry.rows] == [(end, len(segments))]
    assert begins(site) == 0

    bounded = site.run("retain", "--max-segments", 1, "--json")
    assert bounded.exit_code == 0, bounded.err
    assert begins(site) == segments[0][1] + 1

    result = site.run("retain", "--json")
    assert result.exit_code == 0, result.err
    assert [row["new_local_start"] for row in result.rows] == [end]
    assert mentions(result.err, f"{topic}-0", "no consumer group")
    assert begins(site) == end
    assert client.consume_all(topic, start=end) == sent[end:]
    assert site.run("retain", "--json").rows[0]["segments"] == 0

    # Ours did not move, and readers still get every record.
    assert remote(site) == segments
    assert read(site, Isolation.READ_UNCOMMITTED) == sent[:end]
    assert site.run("expire").exit_code == 0
    client.produce(topic, varied_records(400, seed=9), batch_num_messages=20)
    while site.copied():
        pass
    assert remote(site)[: len(segments)] == segments
    assert remote(site)[len(segments)][0] == end
    site.audited()


def test_trimming_waits_for_the_slowest_group_unless_it_is_ignored(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    segments = filled(site)
    sent = client.consume_all(topic)
    end = segments[-1][1] + 1
    late = segments[1][1] - 5
    commit(site, "reads-last", late)
    commit(site, "reads-first", end)

    result = site.run("retain", "--json")

    assert result.exit_code == 0, result.err
    assert begins(site) == segments[1][0]
    assert mentions(result.err, f"reads-last at offset {late}", "local.retention.ignored.groups")
    assert "reads-first" not in result.err
    assert client.consume_all(topic, start=late) == sent[late:]
    properties = {
        "bootstrap.servers": site.kafka.bootstrap_servers,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
    }
    with closing(Consumer({**properties, "group.id": "reads-last"})) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        [first] = consumer.consume(1, REQUEST_SECONDS)
        assert (first.error(), first.offset()) == (None, late)
    with closing(Consumer({**properties, "group.id": "new", "auto.offset.reset": "earliest"})) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        [first] = consumer.consume(1, REQUEST_SECONDS)
        assert (first.error(), first.offset()) == (None, segments[1][0])

    forced = with_settings(site, local_retention_ignored_groups=["reads-last", "never-there"])
    result = forced.run("retain", "--json")
    assert result.exit_code == 0, result.err
    assert mentions(result.err, "reads-last", f"{late} to {end - 1}")
    assert begins(site) == end
    assert read(site, Isolation.READ_UNCOMMITTED) == sent[:end]
    forget(site, "reads-last", "reads-first")


def test_a_group_of_kip_848_holds_back_what_it_has_not_read(site: LiveSite) -> None:
    [topic], servers = site.topics, site.kafka.bootstrap_servers
    segments = filled(site, 600)
    late, end = segments[1][1] - 5, segments[-1][1] + 1
    group = {"bootstrap.servers": servers, "group.id": "of-kip-848", "group.protocol": "consumer"}
    with closing(Consumer({**group, "auto.offset.reset": "earliest", "enable.auto.commit": False})) as consumer:
        consumer.subscribe([topic])
        [first] = consumer.consume(1, REQUEST_SECONDS)
        assert (first.error(), first.offset()) == (None, 0)
        consumer.commit(offsets=[TopicPartition(topic, 0, late)], asynchronous=False)
        with ClusterClient.by_properties({"bootstrap.servers": servers}) as client:
            assert Group("of-kip-848", "consumer") in client.list_groups()

        result = site.run("retain", "--json")

        assert result.exit_code == 0, result.err
        assert mentions(result.err, f"of-kip-848 at offset {late}", "local.retention.ignored.groups")
        assert begins(site) == segments[1][0]
        consumer.commit(offsets=[TopicPartition(topic, 0, segments[2][1] + 1)], asynchronous=False)
    # It has no member any more.
    assert site.run("retain").exit_code == 0
    assert begins(site) == segments[2][1] + 1 < end
    forget(site, "of-kip-848")
    assert site.run("retain").exit_code == 0
    assert begins(site) == end


def test_a_topic_that_is_named_waits_for_no_group(site: LiveSite) -> None:
    segments = filled(site)
    commit(site, "late-reader", 0)
    named = with_settings(site, local_retention_topics_ignoring_groups=site.topics[0])

    result = named.run("retain", "--json")

    assert result.exit_code == 0, result.err
    assert "local.retention.topics.ignoring.groups" in result.err
    assert begins(site) == segments[-1][1] + 1
    forget(site, "late-reader")


def test_a_plan_that_was_left_is_done_later_as_far_as_it_still_holds(site: LiveSite) -> None:
    segments = filled(site)
    saved = site.root / "plan.jsonl"
    assert site.run("retain", "--dry-run", "--save-plan", saved).exit_code == 0
    commit(site, "came-late", segments[0][1] + 1)

    assert site.run("retain", "--plan", saved).exit_code == 0
    assert begins(site) == segments[0][1] + 1
    forget(site, "came-late")
    again = site.run("retain", "--plan", saved)
    assert again.exit_code == 0, again.err
    assert begins(site) == segments[0][1] + 1

    assert site.run("retain").exit_code == 0
    assert begins(site) == segments[-1][1] + 1
    site.audited()


def test_records_after_an_open_transaction_stay(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    filled(site, 400)
    open_one = client.producer(transactional_id=topic, enable_idempotence="true")
    open_one.init_transactions()
    open_one.begin_transaction()
    [first, *_] = send(open_one, topic, 0, varied_records(1, seed=5))
    client.produce(topic, varied_records(600, seed=6), batch_num_messages=20)
    while site.copied():
        pass

    assert site.run("retain").exit_code == 0

    assert 0 < begins(site) <= first.offset
    open_one.abort_transaction()
    client.wait_until_decided(topic)
    while site.copied():
        pass
    assert site.run("retain").exit_code == 0
    assert begins(site) == remote(site)[-1][1] + 1 > first.offset
    site.audited()


def test_records_that_somebody_else_deleted_at_the_broker_stay_remote(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    segments = filled(site)
    sent = client.consume_all(topic)
    middle = segments[1][0] + 7
    client.delete_records(topic, 0, before=middle)

    assert site.run("retain", "--max-segments", 1).exit_code == 0
    assert begins(site) == segments[1][1] + 1
    client.delete_records(topic, 0, before=segments[3][0] + 7)
    assert site.run("expire").exit_code == 0
    assert site.copied() == []

    assert remote(site) == segments
    assert read(site, Isolation.READ_UNCOMMITTED) == sent[: segments[-1][1] + 1]
    site.audited()


def test_a_gap_that_brokers_left_below_their_log_start_holds_nothing_up(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    before = filled(site, 400)
    client.produce(topic, varied_records(800, seed=2), batch_num_messages=20)
    start = before[-1][1] + 100
    client.delete_records(topic, 0, before=start)
    over = with_settings(site, copy_over_gaps=True)
    assert over.run("copy").exit_code == 1, "it tells of the loss"
    while over.copied():
        pass

    assert over.run("retain").exit_code == 0

    assert begins(site) == remote(site)[-1][1] + 1 > start
    assert remote(site)[: len(before)] == before


def test_metadata_that_the_store_contradicts_delete_nothing(site: LiveSite) -> None:
    filled(site, 400)
    with site.open() as remote_log:
        lost = finished(remote_log)[1]
        lease = remote_log.context.leases.acquire(lost.topic_id_partition, "test", 60_000)
        gone = RemoteLogSegmentMetadataUpdate(lost.segment_id, SegmentState.DELETE_SEGMENT_STARTED, wall_clock())
        remote_log.context.segments.update_remote_log_segment_metadata(gone, lease)
        remote_log.context.leases.release(lease)

    result = site.run("retain")

    assert result.exit_code == 1
    assert mentions(result.err, lost.segment_id.id, "repair")
    assert begins(site) == 0


def test_a_share_group_holds_back_everything_unless_it_is_named(site: LiveSite) -> None:
    [topic], servers = site.topics, site.kafka.bootstrap_servers
    segments = filled(site, 400)
    with closing(ShareConsumer({"bootstrap.servers": servers, "group.id": "queue"})) as consumer:
        consumer.subscribe([topic])
        with ClusterClient.by_properties({"bootstrap.servers": servers}) as client:
            while Group("queue", "share") not in client.list_groups():
                consumer.poll(0.1)

        refused = site.run("retain")
        named = with_settings(site, local_retention_ignored_groups="queue").run("retain")

    assert refused.exit_code == 1
    assert mentions(refused.err, f"{topic}-0", "queue", "share group", "local.retention.ignored.groups")
    assert named.exit_code == 0, named.err
    assert begins(site) == segments[-1][1] + 1
    forget(site, "queue")


def test_a_segment_that_is_damaged_in_the_store_keeps_its_partition_and_no_other(site: LiveSite) -> None:
    filled(site, partitions=2)
    with site.open() as remote_log:
        second = finished(remote_log)[1]
    [damaged] = (site.root / "state").rglob(f"*{second.segment_id.id}.log")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    result = site.run("retain", "--json")

    assert result.exit_code == 1
    assert mentions(result.err, f"{site.topics[0]}-0", second.segment_id.id)
    assert begins(site, 0) == 0
    assert begins(site, 1) == remote(site, 1)[-1][1] + 1


def test_a_topic_without_the_right_or_with_another_policy_by_now_is_refused(site: LiveSite) -> None:
    [topic], client = site.topics, site.kafka.client
    segments = filled(site)
    saved = site.root / "plan.jsonl"
    assert site.run("retain", "--dry-run", "--save-plan", saved).exit_code == 0
    client.alter_topic(topic, {"cleanup.policy": "compact"})

    compacted = site.run("retain", "--plan", saved)
    assert compacted.exit_code == 1
    assert "cleanup.policy" in compacted.err
    client.alter_topic(topic, {"cleanup.policy": "delete"})
    assert site.run("topics", "forbid-deletion", topic, "--only", "local").exit_code == 0
    for command in (("retain", "--topics", topic), ("retain", "--plan", saved)):
        forbidden = site.run(*command)
        assert forbidden.exit_code == 1
        assert mentions(forbidden.err, topic, "local deletion")
    assert begins(site) == 0

    allowed = site.run("topics", "allow-deletion", topic, "--only", "local", "--json")
    assert allowed.exit_code == 0
    assert f'"local_segments": {len(segments)}' in allowed.out
    assert site.run("stop-deletions", "--reason", "test").exit_code == 0
    assert site.run("retain").exit_code == 1
    assert begins(site) == 0
    assert site.run("stop-deletions", "--lift").exit_code == 0


def test_every_right_that_is_missing_is_named_and_other_topics_proceed(site: LiveSite) -> None:
    [topic] = site.topics
    segments = filled(site)
    other = f"{topic[:60]}-other"
    site.kafka.client.create_topic(other, 1, SMALL_SEGMENTS | LONG)
    site.kafka.client.produce(other, varied_records(400, seed=3), batch_num_messages=20)
    commit(site, "guarded-group", segments[-1][1] + 1)
    properties = site.root / "client.properties"
    login = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    properties.chmod(0o600)
    guarded = replace(
        site,
        settings={
            "topics": {topic: TRIMMED, other: TRIMMED},
            "bootstrap.servers": site.kafka.address("SASL"),
            "cluster.client.properties.file": str(properties),
        },
    )
    for name in (topic, other):
        for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ):
            grant(site, ResourceType.TOPIC, name, operation)
    while guarded.copied():
        pass

    for resource, name, operation, words in (
        (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE, ["Describe", "--cluster"]),
        (ResourceType.TOPIC, "__consumer_offsets", AclOperation.DESCRIBE, ["Describe", "__consumer_offsets"]),
        (ResourceType.GROUP, "*", AclOperation.DESCRIBE, ["Describe", "--group '*'"]),
    ):
        for command in ("retain", "doctor"):
            refused = guarded.run(command)
            assert refused.exit_code == 1
            assert mentions(refused.out + refused.err, *words)
        grant(site, resource, name, operation)
    grant(site, ResourceType.TOPIC, other, AclOperation.DELETE)
    result = guarded.run("retain")
    examined = guarded.run("doctor")

    assert result.exit_code == examined.exit_code == 1
    assert mentions(result.err, f"{topic}-0", "right Delete", f"--topic {topic}")
    assert mentions(examined.out, topic, "right Delete")
    assert begins(site) == 0
    assert begins(site, topic=other) > 0
    grant(site, ResourceType.TOPIC, topic, AclOperation.DELETE)
    assert guarded.run("retain").exit_code == 0
    examined = guarded.run("doctor")
    assert examined.exit_code == 0, examined.out
    assert "remote of 2 topics" in examined.out
    assert begins(site) == segments[-1][1] + 1
    forget(site, "guarded-group")


def grant(site: LiveSite, resource: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers, "log_level": 4})
    bindings: Sequence[AclBinding] = [
        AclBinding(resource, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for each in admin.create_acls(list(bindings)).values():
        each.result(REQUEST_SECONDS)
