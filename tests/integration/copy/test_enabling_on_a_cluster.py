"""Topics of a running cluster are enabled, watched and left: their brokers' settings, retention and ids (issue 19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.tiering_kafka import TIERED, tiering_kafka
from support.command_line import CommandResult, mentions, run
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.enabling.broker_limits import Origin

SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
LONG = {"segment.ms": str(1 << 60)}
HOUR = 3_600_000
DAY = 24 * HOUR
WAIT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Site:
    """A remote log below `root`, beside the running broker; `properties` are its settings."""

    kafka: RealKafka
    root: Path
    properties: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *command: object) -> CommandResult:
        path = self.root / "settings.yaml"
        settings = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.directory": str(self.root / "state"),
            **self.properties,
        }
        path.write_text(yaml.safe_dump(settings))
        return run(*command, "--config", path)

    def done(self, *command: object) -> CommandResult:
        """Run a command that succeeds."""
        result = self.run(*command, "--json")
        assert result.exit_code == 0, result.err
        return result

    def copied(self) -> set[str]:
        """Run a copy that succeeds; return the partitions that it copied of."""
        return {row["partition"] for row in self.done("copy").rows}

    def listed(self, topic: str) -> list[dict[str, Any]]:
        return [row for row in self.done("topics", "list").rows if row["topic"] == topic]

    def remote(self, topic: str) -> int:
        """Return how many segments of the topic are remote."""
        return len(self.done("segments", "--topics", topic).rows)

    def incarnations(self, topic: str) -> set[str]:
        """Return the topic ids under which the store has segments of the topic."""
        folders = {path.parents[1].name for path in (self.root / "state").rglob("*.log")}
        return {name.removeprefix(f"{topic}-") for name in folders if name.startswith(topic)}


@pytest.fixture(scope="module")
def kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker that tiers topics itself where it is asked to."""
    with tiering_kafka(kafka_programs, tmp_path_factory.mktemp("enabling")) as started:
        yield started


@pytest.fixture
def site(kafka: RealKafka, tmp_path: Path) -> Site:
    return Site(kafka, tmp_path)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.partition("[")[0].removeprefix("test_")[:80]


def fresh(count: int, size: int = 200) -> list[Record]:
    """Records of now."""
    return [Record(0, wall_clock(), b"key", bytes(size)) for _ in range(count)]


def delete_topic(kafka: RealKafka, topic: str) -> None:
    """Delete a topic at the broker, and wait until its metadata no longer have it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
    wait_for(
        lambda: topic not in admin.list_topics(timeout=WAIT_SECONDS).topics,
        lambda: "the broker keeps the topic",
        WAIT_SECONDS,
    )


def add_partitions(kafka: RealKafka, topic: str, count: int) -> None:
    """Add partitions to a topic, and wait until the broker's metadata have them."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(WAIT_SECONDS)
    wait_for(
        lambda: len(admin.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions) >= count,
        lambda: "the broker does not add the partitions",
        WAIT_SECONDS,
    )


def test_topics_and_partitions_that_come_later_are_copied_by_the_next_run(site: Site) -> None:
    client = site.kafka.client
    assert mentions(site.done("topics", "enable", "unseen-.*").err, "so far no topic")
    client.create_topic("later-a", 1, SMALL_SEGMENTS | LONG)
    client.create_topic("later-compacted", 1, {"cleanup.policy": "compact"})
    enabled = site.run("topics", "enable", "later-.*", "--json")
    assert enabled.exit_code == 1
    assert {row["topic"]: row["remote.storage.enable"] for row in enabled.rows} == {
        "later-a": True, "later-compacted": False,
    }  # fmt: skip
    client.produce("later-a", varied_records(200, seed=1), batch_num_messages=20)
    assert site.copied() == {"later-a-0"}

    add_partitions(site.kafka, "later-a", 2)
    client.create_topic("later-b", 1, SMALL_SEGMENTS | LONG)
    client.create_topic("earlier", 1, SMALL_SEGMENTS | LONG)
    client.produce("later-a", varied_records(200, seed=2), partition=1, batch_num_messages=20)
    client.create_topic("unseen-a", 1, SMALL_SEGMENTS | LONG)
    for name in ("later-b", "earlier", "unseen-a"):
        client.produce(name, varied_records(200, seed=3), batch_num_messages=20)
    result = site.done("copy")

    assert {row["partition"] for row in result.rows} == {"later-a-1", "later-b-0", "unseen-a-0"}
    assert "later-compacted: left alone" in result.err
    assert site.done("audit", "--deep").exit_code == 0

    site.done("topics", "disable", "later-b")
    client.produce("later-b", varied_records(200, seed=4), batch_num_messages=20)
    assert site.copied() == set(), "a decision on its name counts"
    site.done("topics", "disable", "later-.*")
    client.create_topic("later-c", 1, SMALL_SEGMENTS | LONG)
    client.produce("later-c", varied_records(200, seed=5), batch_num_messages=20)
    assert site.copied() == set()


def test_topics_that_kafka_itself_tiers_are_left_alone_and_named(site: Site) -> None:
    client = site.kafka.client
    client.create_topic("kafkas", 1, TIERED | LONG)
    client.create_topic("kafkas-not", 1, SMALL_SEGMENTS | LONG)
    for name in ("kafkas", "kafkas-not"):
        client.produce(name, varied_records(200, seed=1), batch_num_messages=20)

    refused = site.run("topics", "enable", "kafkas")
    assert refused.exit_code == 1
    assert "remote.storage.enable=true" in refused.err
    enabled = site.done("topics", "enable", "kafkas.*")

    assert mentions(enabled.err, "note: left alone: topic kafkas: ", "Kafka itself tiers")
    assert {row["topic"]: row["remote.storage.enable"] for row in enabled.rows} == {"kafkas": False, "kafkas-not": True}
    assert "Kafka itself tiers kafkas" in site.listed("kafkas")[0]["problem"]
    result = site.done("copy")
    assert {row["partition"] for row in result.rows} == {"kafkas-not-0"}
    assert "kafkas: left alone" in result.err


def test_a_retention_that_a_days_outage_would_eat_is_refused_and_alarmed(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | {"retention.ms": str(30 * HOUR), "segment.ms": str(7 * DAY)})

    refused = site.run("topics", "enable", topic)
    assert refused.exit_code == 1
    for word in (f"retention.ms={30 * HOUR}", "15.0 h", str(2 * DAY), "enable.min.retention.margin.ms"):
        assert word in refused.err
    assert not site.listed(topic)[0]["remote.storage.enable"]

    client.alter_topic(topic, {"retention.ms": str(2 * DAY)})
    site.done("topics", "enable", topic)
    client.produce(topic, fresh(200), batch_num_messages=20)
    assert site.copied() == {f"{topic}-0"}

    client.alter_topic(topic, {"retention.ms": str(12 * HOUR)})
    client.produce(topic, fresh(200), batch_num_messages=20)
    alarmed = site.run("copy", "--json")
    assert alarmed.exit_code == 1
    assert {row["partition"] for row in alarmed.rows} == {f"{topic}-0"}, "it is copied all the same"
    assert mentions(alarmed.err, f"{topic}: ", "not copied yet")
    assert "longer than 6.0 h" in alarmed.err
    assert [each["partition"] for each in site.run("plan", "--json").document["alarms"]] == [topic]
    replace(site, properties={"enable.min.retention.margin.ms": HOUR}).done("copy")


def test_a_retention_in_bytes_counts_by_the_rate_of_the_partition(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 2, SMALL_SEGMENTS | LONG | {"retention.bytes": "200000"})
    site.done("topics", "enable", topic)
    client.produce(topic, fresh(300), partition=1, batch_num_messages=20)

    alarmed = site.run("copy", "--json")
    assert alarmed.exit_code == 1
    assert "(retention.bytes=200000, written at " in alarmed.err
    site.done("topics", "disable", topic)
    assert site.run("topics", "enable", topic).exit_code == 1
    client.alter_topic(topic, {"retention.bytes": str(1 << 30)})
    site.done("topics", "enable", topic)
    site.done("copy")


def test_the_list_says_whose_limits_hold_and_they_do(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG | {"retention.ms": str(1 << 50)})
    client.produce(topic, varied_records(200, seed=1), batch_num_messages=20)
    site = replace(site, properties={"log.local.retention.ms": HOUR})
    site.done("topics", "enable", topic)
    assert site.copied() == {f"{topic}-0"}
    site.done("topics", "allow-deletion", topic, "--only", "remote")

    [row] = site.listed(topic)
    assert (row["retention.ms"], row["retention.bytes"], row["local.retention.ms"]) == (1 << 50, -1, HOUR)
    assert (row["segment.bytes"], row["segment.ms"]) == (16384, 1 << 60)
    assert {name: row["origins"][name] for name in ("retention.ms", "retention.bytes", "local.retention.ms")} == {
        "retention.ms": Origin.BROKERS_TOPIC,
        "retention.bytes": Origin.BROKERS_DEFAULT,
        "local.retention.ms": Origin.ALL_TOPICS,
    }
    assert row["origins"]["segment.bytes"] == Origin.BROKERS_TOPIC
    assert f"{Origin.BROKERS_TOPIC}: retention.ms" in " ".join(site.run("topics", "list").out.split())
    kept = site.remote(topic)
    site.done("expire")
    assert site.remote(topic) == kept, "records are years old, and the brokers' topic keeps them"

    site.done("topics", "set", topic, f"retention.ms={2 * HOUR}", "segment.ms=1000")
    [row] = site.listed(topic)
    assert (row["retention.ms"], row["segment.ms"]) == (2 * HOUR, 1000)
    assert row["origins"]["retention.ms"] == row["origins"]["segment.ms"] == Origin.TOPIC
    assert site.copied() == {f"{topic}-0"}, "the tail is older than the topic's segment.ms"
    replace(site, properties={"remote.log.deletion.grace.ms": 0}).done("expire")
    assert {row["state"] for row in site.done("segments", "--topics", topic).rows} <= {"DELETE_SEGMENT_STARTED"}


def test_a_retention_that_is_lowered_at_the_brokers_expires_nothing_before_the_grace_time(
    site: Site, topic: str
) -> None:
    client, long, short = site.kafka.client, 1 << 50, 3 * DAY
    # The broker itself deletes by the lower limit at once, also what is not copied.
    site = replace(site, properties={"copy.over.gaps": True})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG | {"retention.ms": str(long)})
    client.produce(topic, varied_records(300, seed=1), batch_num_messages=20)
    site.done("topics", "enable", topic)
    site.done("topics", "allow-deletion", topic, "--only", "remote")
    site.done("copy")

    client.alter_topic(topic, {"retention.ms": str(short)})
    alarmed = site.run("copy", "--json")
    if "OFFSET_OUT_OF_RANGE" in alarmed.err:
        # The broker deleted by its lower limit amid the run.
        alarmed = site.run("copy", "--json")
    assert alarmed.exit_code == 1
    assert mentions(alarmed.err, f"{topic}: ", "retention.ms", long, short, "remote.log.lowered.limit.grace.ms")
    kept = site.remote(topic)
    site.done("expire")
    site.done("expire")
    assert site.remote(topic) == kept > 0, "the records are years old, and the lower limit does not count yet"
    [row] = site.listed(topic)
    assert (row["retention.ms"], row["origins"]["retention.ms"]) == (long, Origin.HELD)
    assert f"{topic}: its brokers lowered retention.ms" in site.run("plan").err
    assert "lower one after 20" in site.run("plan").err

    client.alter_topic(topic, {"retention.ms": str(long + 1)})
    site.done("copy")
    site.done("expire")
    [row] = site.listed(topic)
    assert (row["retention.ms"], row["origins"]["retention.ms"]) == (long + 1, Origin.BROKERS_TOPIC)

    client.alter_topic(topic, {"retention.ms": str(short)})
    soon = replace(
        site,
        properties={
            **site.properties, "remote.log.lowered.limit.grace.ms": 1, "remote.log.deletion.grace.ms": 0
        },
    )  # fmt: skip
    kept = site.remote(topic)
    soon.done("expire")
    assert site.remote(topic) == kept > 0, "this run is the first to know"
    soon.done("expire")
    soon.done("expire")
    # A copy that the broker's own deletion overtook is unfinished, and stays marked for its grace time.
    assert {row["state"] for row in site.done("segments", "--topics", topic).rows} <= {"DELETE_SEGMENT_STARTED"}
    assert site.listed(topic)[0]["retention.ms"] == short


def test_a_limit_that_is_confirmed_here_counts_at_once(site: Site, topic: str) -> None:
    client, site = site.kafka.client, replace(site, properties={"copy.over.gaps": True})
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG | {"retention.ms": str(1 << 50)})
    client.produce(topic, varied_records(300, seed=1), batch_num_messages=20)
    site.done("topics", "enable", topic)
    site.done("topics", "allow-deletion", topic, "--only", "remote")
    site.done("copy")
    client.alter_topic(topic, {"retention.ms": str(3 * DAY)})
    assert site.run("copy").exit_code == 1

    site.done("topics", "set", topic, f"retention.ms={3 * DAY}")
    site.done("copy")
    replace(site, properties={"remote.log.deletion.grace.ms": 0}).done("expire")
    assert {row["state"] for row in site.done("segments", "--topics", topic).rows} <= {"DELETE_SEGMENT_STARTED"}


def test_a_copy_rolls_by_our_segment_bytes_in_place_of_the_brokers(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, fresh(6000), batch_num_messages=50)
    site.done("topics", "enable", topic)
    site.done("topics", "set", topic, f"segment.bytes={1 << 20}")

    [row] = site.listed(topic)
    assert (row["segment.bytes"], row["origins"]["segment.bytes"]) == (1 << 20, Origin.TOPIC)
    [copied] = site.done("copy").rows
    assert (1 << 20) - 16_384 < copied["bytes"] <= 1 << 20

    site.done("topics", "set", topic, "segment.bytes=")
    [row] = site.listed(topic)
    assert (row["segment.bytes"], row["origins"]["segment.bytes"]) == (16_384, Origin.BROKERS_TOPIC)
    rows = site.done("copy").rows
    assert len(rows) > 5
    assert max(each["bytes"] for each in rows) <= 16_384
    site.done("audit", "--deep")


def test_segments_wait_for_the_topics_lag(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, fresh(400), batch_num_messages=10)
    site.done("topics", "enable", topic)
    site.done("topics", "set", topic, f"remote.copy.lag.ms={DAY}")
    assert site.copied() == set()

    site.done("topics", "set", topic, "remote.copy.lag.bytes=40000")
    first = site.done("copy").rows
    assert first
    size = sum(row["bytes"] for row in first)
    end = max(row["end_offset"] for row in first)
    assert (399 - end) * size / (end + 1) >= 40_000 * 0.9
    assert site.copied() == set()

    site.done("topics", "set", topic, "remote.copy.lag.ms=0", "remote.copy.lag.bytes=")
    assert min(row["start_offset"] for row in site.done("copy").rows) == end + 1
    site.done("audit", "--deep")


def test_records_older_than_the_lag_are_copied(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, [Record(0, wall_clock() - 2 * DAY, b"key", bytes(200))] * 200, batch_num_messages=10)
    client.produce(topic, fresh(200), batch_num_messages=10)
    site.done("topics", "enable", topic)
    site.done("topics", "set", topic, f"remote.copy.lag.ms={DAY}")

    rows = site.done("copy").rows

    assert rows
    assert max(row["end_offset"] for row in rows) < 200


def test_a_topic_out_of_sight_is_reported_and_not_deleted(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(200, seed=1), batch_num_messages=20)
    site.done("topics", "enable", topic)
    site.copied()
    site.done("topics", "allow-deletion", topic, "--only", "remote")
    kept = site.remote(topic)
    delete_topic(site.kafka, topic)

    result = site.done("copy")
    assert mentions(result.err, f"note: {topic}: ", "no longer shows")
    replace(site, properties={"remote.log.replaced.topic.grace.ms": 0}).done("expire")

    assert site.remote(topic) == kept > 0
    assert "no longer shows" in site.listed(topic)[0]["problem"]
    assert site.listed(topic)[0]["origins"]["retention.ms"] == Origin.UNKNOWN


def test_an_old_incarnation_is_deleted_after_the_grace_time_where_that_is_allowed(site: Site, topic: str) -> None:
    client = site.kafka.client
    now = {"remote.log.replaced.topic.grace.ms": 0, "remote.log.deletion.grace.ms": 0}
    old = client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(200, seed=1), batch_num_messages=20)
    site.done("topics", "enable", topic)
    site.copied()
    delete_topic(site.kafka, topic)
    new = client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(300, seed=2), batch_num_messages=20)
    site.done("topics", "enable", topic)

    result = site.done("copy")
    assert mentions(result.err, f"({old}) was deleted", f"({new})", "deletion is not allowed")
    replace(site, properties=now).done("expire")
    assert site.incarnations(topic) == {old, new}, "nothing is deleted that is not allowed"

    site.done("topics", "allow-deletion", topic, "--only", "remote")
    site.done("expire")
    assert site.incarnations(topic) == {old, new}, "the grace time has begun"
    assert mentions(site.done("copy").err, topic, old, "expire")
    replace(site, properties=now).done("expire")

    assert site.incarnations(topic) == {new}
    assert "created again" not in site.done("copy").err
    site.done("audit", "--deep")


def test_advice_counts_what_a_cluster_has_and_what_has_a_price(site: Site, topic: str) -> None:
    client = site.kafka.client
    client.create_topic(topic, 2, SMALL_SEGMENTS | LONG | {"retention.ms": str(30 * DAY)})
    client.produce(topic, fresh(400), batch_num_messages=20)
    client.create_topic(f"{topic}-compacted", 1, {"cleanup.policy": "compact"})
    prices = {"cost.store.gb.month": 0.02, "cost.disk.gb.month": "0.1", "cost.transfer.gb": 0.5}
    site = replace(site, properties=prices | {"log.local.retention.ms": DAY})

    result = site.done("topics", "advise", f"{topic}.*")

    advised, compacted = result.rows
    log = [path.stat().st_size for path in (site.kafka.log_dir / f"{topic}-0").glob("*.log")]
    assert (advised["topic"], advised["partitions"], advised["local_bytes"]) == (topic, 2, sum(log))
    assert advised["due_bytes"] == sum(log) // 16384 * 16384
    assert abs(advised["daily_bytes"] / sum(log) - 1) < 0.1
    assert advised["stored_bytes"] == pytest.approx(30 * advised["daily_bytes"], rel=0.01)
    assert advised["kept_locally_bytes"] == pytest.approx(advised["daily_bytes"] + 16384, rel=0.01)
    assert advised["saved_bytes"] == advised["stored_bytes"] - advised["kept_locally_bytes"]
    assert advised["store_a_month"] == pytest.approx(advised["stored_bytes"] / 10**9 * 0.02)
    assert advised["disks_saved_a_month"] == pytest.approx(advised["saved_bytes"] / 10**9 * 0.1)
    assert advised["writes_a_month"] is advised["reads_a_month"] is None
    assert "cleanup.policy" in compacted["problem"]
    assert result.document["sum"]["stored_bytes"] == advised["stored_bytes"]
    missing = ["cost.store.write.thousand", "cost.store.read.thousand"]
    assert result.document["not_counted"] == missing
    assert advised["transfer_a_month"] == pytest.approx(2 * 30 * advised["daily_bytes"] / 10**9 * 0.5)
    assert result.document["estimated"] is None
    shown = site.run("topics", "advise", f"{topic}.*")
    assert mentions(shown.err, "not counted", ", ".join(missing))
    assert "assumed: a month has 30 days" in shown.err
    assert not site.listed(topic)[0]["remote.storage.enable"]


def test_names_that_are_nearly_the_same_are_named(site: Site) -> None:
    client = site.kafka.client
    for name in ("near.orders", "Near.orders"):
        client.create_topic(name, 1, SMALL_SEGMENTS)

    unknown = site.run("topics", "enable", "near_orders")
    assert unknown.exit_code == 1
    assert mentions(unknown.err, "near_orders", "Near.orders, near.orders")
    enabled = site.done("topics", "enable", "near.orders")
    assert mentions(enabled.err, "Near.orders")
    seeded = replace(site, properties={"topics": {"NEAR.orders": {"remote.storage.enable": True}}})
    assert mentions(seeded.run("plan").err, "note: NEAR.orders: ")
