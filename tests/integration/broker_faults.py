"""Faults of three brokers under load, for tests in which copies continue. Each proves that it happened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stubs do not export it

from support.live_cluster import CopyLoop, LiveCluster
from support.waiting import wait_for
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from tiered_storage.kafka_wire.brokers import Brokers
from tiered_storage_airflow.demo_cluster.brokers import NODES, REQUEST_SECONDS, BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, judge, read_local, read_remote

CLIENT_ID = "remote-log"
QUOTA_BYTES = 20_000
"""Bytes that each broker may send to the copies in a second: well below half of its write rate."""


def by_fetch(_: BrokerCluster) -> dict[str, Any]:
    """Return the settings of copies by Fetch."""
    return {}


def of_files(brokers: BrokerCluster) -> dict[str, Any]:
    """Return the settings of copies of the leaders' files."""
    return {"broker.log.dirs": {str(node): [str(brokers.log_dir(node))] for node in NODES}}


def kill_one_by_one(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """As by power cuts."""
    for node in NODES:
        brokers.kill(node)
        copies.wait_for_segments()
        brokers.start(node)
        wait_for_replicas(brokers, topic)


def lose_checkpoints_of_a_leader(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """It is killed, comes back without its checkpoint files as a follower, and leads again."""
    lost = brokers.leader(topic, 0)
    brokers.kill(lost)
    _remove_checkpoints(brokers, lost)
    copies.wait_for_segments()
    brokers.start(lost)
    wait_for_replicas(brokers, topic)
    while brokers.leader(topic, 0) != lost:
        pass_leadership_on(brokers, topic)
    copies.wait_for_segments(3)


def lose_all_checkpoints(brokers: BrokerCluster) -> None:
    """All three brokers are killed at once, and come back without their checkpoint files."""
    for node in NODES:
        brokers.kill(node)
    for node in NODES:
        _remove_checkpoints(brokers, node)
    brokers.start(*NODES)


def _remove_checkpoints(brokers: BrokerCluster, node: int) -> None:
    """Of a broker that does not run, and has run for more than the five seconds after which it writes the first."""
    (brokers.log_dir(node) / HIGH_WATERMARK_CHECKPOINT).unlink()
    for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT):
        (brokers.log_dir(node) / name).unlink(missing_ok=True)


def move_leaders(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """Each partition gets the other two brokers for leaders, one after the other."""
    for _ in range(2):
        pass_leadership_on(brokers, topic)
        copies.wait_for_segments(3)


def reassign(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """Each partition moves to two brokers, of which one had it already, and back to three."""
    reassign_to(brokers, topic, {number: [NODES[(number + 1) % 3], NODES[(number + 2) % 3]] for number in range(3)})
    copies.wait_for_segments(3)
    reassign_to(brokers, topic, {number: all_from(NODES[number]) for number in range(3)})
    copies.wait_for_segments(3)


def throttle(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """The brokers give the copies less than half of the written bytes, then lift that quota."""
    quota = ("--alter", "--entity-type", "clients", "--entity-name", CLIENT_ID)
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", brokers.bootstrap_servers, *quota)
    # A remote log of its own, which no lease of the other copies holds up.
    beside = LiveCluster(brokers, copies.site.root / "beside", copies.site.topics)
    beside.root.mkdir()
    beside.write()
    with waits_for_quotas() as waits:
        copied = beside.run("copy", "--max-segments", 3)
        assert (copied.exit_code, waits) == (0, []), copied
        brokers.programs.tool(*tool, "--add-config", f"consumer_byte_rate={QUOTA_BYTES}")
        try:
            wait_for(
                lambda: beside.run("copy", "--max-segments", 3).exit_code == 0 and bool(waits),
                lambda: f"the quota of {CLIENT_ID} holds no copy back",
            )
        finally:
            brokers.programs.tool(*tool, "--delete-config", "consumer_byte_rate")


def kill_copies(_: BrokerCluster, __: str, copies: CopyLoop) -> None:
    """A copy is killed in the middle."""
    copies.kill()
    copies.wait_for_segments(3)


def add_partitions(brokers: BrokerCluster, topic: str, count: int) -> None:
    """Let a topic have `count` partitions."""
    admin = brokers.admin()
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(REQUEST_SECONDS)


def wait_for_replicas(brokers: BrokerCluster, topic: str) -> None:
    """Wait until all replicas of a topic are in sync."""

    def in_sync() -> bool:
        found = brokers.admin().list_topics(topic, timeout=10).topics[topic].partitions.values()
        return all(len(each.isrs) == len(each.replicas) for each in found)

    wait_for(in_sync, lambda: "replicas do not come back")


def pass_leadership_on(brokers: BrokerCluster, topic: str) -> None:
    """Let the next broker lead each of the topic's three partitions, in place of the one that leads it now."""
    before = {number: brokers.leader(topic, number) for number in range(3)}
    wanted = {number: NODES[(NODES.index(leader) + 1) % 3] for number, leader in before.items()}
    reassign_to(brokers, topic, {number: all_from(node) for number, node in wanted.items()})
    partitions = [TopicPartition(topic, number) for number in wanted]
    admin = brokers.admin()
    elected = admin.elect_leaders(ElectionType.PREFERRED, partitions).result(REQUEST_SECONDS)
    refused = {str(each): str(error) for each, error in elected.items() if error is not None}
    assert (len(elected), refused) == (3, {})
    wait_for(
        lambda: {number: brokers.leader(topic, number) for number in wanted} == wanted,
        lambda: f"the leaders were {before}, and are not {wanted}",
    )


def reassign_to(brokers: BrokerCluster, topic: str, wanted: Mapping[int, list[int]]) -> None:
    """Move each of the topic's partitions to the brokers `wanted` for it, and wait until all of them have it."""
    rows = [{"topic": topic, "partition": number, "replicas": nodes} for number, nodes in wanted.items()]
    plan = brokers.log_dir(1).parent / "reassignment.json"
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    tool = ("--bootstrap-server", brokers.bootstrap_servers, "--reassignment-json-file", plan)
    brokers.programs.tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *tool, "--execute")

    def moved() -> bool:
        found = brokers.admin().list_topics(topic, timeout=10).topics[topic].partitions
        return all(found[number].replicas == nodes == sorted(found[number].isrs, key=nodes.index)
                   for number, nodes in wanted.items())  # fmt: skip

    wait_for(moved, lambda: "the partitions do not move")


def ensure_as_their_leader(site: LiveCluster, ledger: Ledger, topic: str) -> None:
    """Audit everything deeply; see that both tiers have the records of `topic` that its leader has, each once.

    An unclean election lost some of the acknowledged ones; no other is missing.
    """
    site.audited()
    with site.open() as remote_log:
        remote = read_remote(remote_log)
    local = read_local({"bootstrap.servers": site.kafka.bootstrap_servers}, [topic])
    assert remote.keys() <= local.keys()
    assert {place: local[place] for place in remote} == remote
    counts = judge(ledger.acknowledged(), remote, local)[topic]
    assert counts.twice == 0, counts
    survivors = {key for keys in local.values() for key in keys}
    assert counts.lost == len(ledger.acknowledged().keys() - survivors) > 0


def all_from(first: int) -> list[int]:
    """Return all three brokers, `first` first."""
    return [NODES[(NODES.index(first) + at) % 3] for at in range(3)]


@contextmanager
def waits_for_quotas() -> Iterator[list[float]]:
    """Note for how long (s) each answer of a broker with a quota makes a copy in this process wait."""
    waits: list[float] = []
    wait = Brokers.pause

    def noted(brokers: Brokers, seconds: float) -> None:
        waits.append(seconds)
        wait(brokers, seconds)

    with mock.patch.object(Brokers, "pause", noted):
        yield waits
