"""The commands of topics beside a running cluster: what it hides, what comes later, and unusable settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from support.bad_clusters import without_patience
from support.command_line import CommandResult, mentions, run
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_CONFIGS, METADATA
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress
from tiered_storage.kafka_wire.connections.frames import entity
from unit.tiered_storage.kafka_wire.scripted_broker import Asked, ScriptedBroker, framed, schema

GRANT = "kafka-acls.sh --add --allow-principal User:... --operation Describe --topic"
PARTITION = {
    "error_code": ErrorCode.none, "partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": (1,),
    "isr_nodes": (1,), "offline_replicas": (),
}  # fmt: skip


@dataclass
class Cluster:
    """One broker, at `address`, that answers nothing about a partition's log.

    `topics` are those that the login may see, with the settings that it shows of each.
    """

    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    address: BrokerAddress = field(default_factory=lambda: BrokerAddress("127.0.0.1", 1))

    def answer(self, asked: Asked) -> bytes | None:
        answers = {METADATA.key: self.metadata, DESCRIBE_CONFIGS.key: self.described}
        if asked.key not in answers:
            return None
        values = {
            "throttle_time": timedelta(0),
            "error_code": ErrorCode.none,
            **answers[asked.key](asked, schema(asked)),
        }
        return framed(entity(load_response_schema(asked.key, asked.version), **values), asked.correlation_id)

    def metadata(self, asked: Asked, kio: Any) -> dict[str, Any]:
        wanted = None if asked.message.topics is None else {each.name for each in asked.message.topics}
        topics = tuple(
            kio.MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=name,
                topic_id=UUID(int=number << 70),
                partitions=(kio.MetadataResponsePartition(**PARTITION),),
            )
            for number, name in enumerate(self.topics, 1)
            if wanted is None or name in wanted
        )
        broker = kio.MetadataResponseBroker(node_id=1, host=self.address.host, port=self.address.port, rack=None)
        return {"brokers": (broker,), "cluster_id": "lab", "controller_id": 1, "topics": topics}

    def described(self, asked: Asked, kio: Any) -> dict[str, Any]:
        return {
            "results": tuple(
                kio.DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=tuple(
                        kio.DescribeConfigsResourceResult(
                            name=name, value=value, read_only=False, is_sensitive=False, synonyms=(), documentation=None
                        )
                        for name, value in self.topics[each.resource_name].items()
                    ),
                )
                for each in asked.message.resources
            )
        }


@dataclass(frozen=True)
class Site:
    """A remote log below `root` beside `cluster`."""

    cluster: Cluster
    root: Path

    def topics(self, *arguments: object) -> CommandResult:
        path = self.root / "settings.yaml"
        settings = {"bootstrap.servers": str(self.cluster.address), "state.directory": str(self.root / "state")}
        path.write_text(yaml.safe_dump(settings), "utf-8")
        return run("topics", *arguments, "--json", "--config", path)

    def enabled(self) -> set[str]:
        listed = self.topics("list")
        assert listed.exit_code == 0, listed.err
        return {row["topic"] for row in listed.rows if row["remote.storage.enable"]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    cluster = Cluster()
    with ScriptedBroker(cluster.answer) as broker:
        cluster.address = broker.address
        yield Site(cluster, tmp_path)


@pytest.mark.parametrize("command", ["enable", "pause"])
def test_a_topic_that_the_cluster_does_not_show_names_the_cluster_and_the_right_that_may_hide_it(
    site: Site, command: str
) -> None:
    refused = site.topics(command, "orders")

    assert refused.exit_code == 1
    place = f"the cluster at {site.cluster.address} (bootstrap.servers)"
    assert mentions(refused.err, "topic orders", place, f"{GRANT} orders;", "topics list")
    assert "log.dirs" not in refused.err


def test_a_name_that_is_nearly_one_of_the_clusters_is_taken_for_a_typo(site: Site) -> None:
    site.cluster.topics["Orders"] = {}

    refused = site.topics("enable", "orders")

    assert mentions(refused.err, "topic orders", site.cluster.address, "Orders", "case")


def test_a_pattern_for_topics_to_come_enables_them_in_a_cluster_that_has_none(site: Site) -> None:
    enabled = site.topics("enable", "coming-.*")

    assert (enabled.exit_code, enabled.rows) == (0, [])
    assert mentions(enabled.err, site.cluster.address, "expression coming-.*", f"{GRANT} NAME")
    assert mentions(enabled.document["notices"][0], "so far no topic")
    site.cluster.topics |= {"coming-a": {}, "others": {}}
    assert site.enabled() == {"coming-a"}
    assert site.topics("disable", "coming-.*").exit_code == 0
    site.cluster.topics["coming-b"] = {}
    assert site.enabled() == set()


def test_a_topic_with_a_setting_that_is_no_number_is_named_and_the_others_are_listed(site: Site) -> None:
    site.cluster.topics |= {"clicks": {"segment.bytes": "1048576"}, "orders": {"segment.bytes": "many"}}

    listed, refused = site.topics("list"), site.topics("enable", "orders")

    assert (listed.exit_code, [row["topic"] for row in listed.rows]) == (0, ["clicks"])
    assert mentions(listed.err, "orders-0: left out", "topic orders", "segment.bytes='many'")
    assert refused.exit_code == 1
    assert mentions(refused.err, "topic orders", "segment.bytes='many'")


SHORT = {"retention.ms": "3600000"}
"""A retention that a day's outage would eat."""


def test_a_pattern_does_not_enable_a_topic_that_its_margin_refuses(site: Site) -> None:
    site.cluster.topics |= {"orders-a": {}, "orders-b": SHORT}

    enabled = site.topics("enable", "orders-.*")

    assert enabled.exit_code == 1
    assert mentions(enabled.document["troubles"][0]["message"], "topic orders-b", "retention.ms=3600000")
    assert mentions(enabled.document["notices"][0], "orders-b", "topics enable orders-b")
    assert {row["topic"]: row["remote.storage.enable"] for row in enabled.rows} == {"orders-a": True, "orders-b": False}
    site.cluster.topics["orders-c"] = {}
    assert site.enabled() == {"orders-a", "orders-c"}
    site.cluster.topics["orders-b"] = {}
    assert site.enabled() == {"orders-a", "orders-c"}
    assert site.topics("enable", "orders-.*").exit_code == 0
    assert site.enabled() == {"orders-a", "orders-b", "orders-c"}


def test_a_topic_that_is_enabled_stays_so_if_its_margin_is_short_when_a_pattern_enables_it_again(site: Site) -> None:
    site.cluster.topics["orders-a"] = {}
    assert site.topics("enable", "orders-.*").exit_code == 0
    site.cluster.topics |= {"orders-a": SHORT, "orders-b": SHORT}

    assert site.topics("enable", "orders-.*").exit_code == 1

    assert site.enabled() == {"orders-a", "orders-b"}


def test_a_short_retention_refuses_a_topic_whose_log_cannot_be_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patience(monkeypatch)
    site.cluster.topics |= {"orders": {**SHORT, "retention.bytes": "1000000000"}, "clicks": {"retention.bytes": "1000"}}

    refused, enabled = site.topics("enable", "orders"), site.topics("enable", "clicks")

    assert (refused.exit_code, enabled.exit_code) == (1, 0)
    assert mentions(refused.err, "topic orders", "retention.ms=3600000")
    assert site.enabled() == {"clicks"}
