"""Brokers of earlier versions are copied by Fetch: byte for byte, with every codec and with transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from golden.older_formats import FORMATS, OLDER_CODECS
from golden.topics import golden_records
from integration.stored_segments import ensure_as_stored, read
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.zookeeper_kafka import ZooKeeperKafka
from support.command_line import mentions
from support.kafka_clients import CODECS, RealKafkaClient, send
from support.live_sites import LONG, SEGMENT_BYTES, LiveSite, finished
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import Isolation

SMALL_SEGMENTS = {"segment.bytes": str(SEGMENT_BYTES)}
"""Brokers before 4.0 take such sizes, and have no internal name for them."""

WITHOUT_IDS = "2.8.2 without topic ids"
"""As brokers are in the middle of an upgrade to 2.8, before their inter.broker.protocol.version is 2.8 too."""
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def kafka(
    request: pytest.FixtureRequest, kafka_programs: KafkaPrograms, state_directory: Path, tmp_path: Path
) -> Iterator[RealKafka]:
    """A broker of the version in the parameter."""
    version, _, without_ids = str(request.param).partition(" ")
    found = kafka_programs.earlier(version, state_directory)
    directory = tmp_path / "broker"
    older = {"inter.broker.protocol.version": "2.7"} if without_ids else None
    broker = ZooKeeperKafka(found, directory, older) if version.startswith("2.") else RealKafka(found, directory)
    with broker as started:
        yield started


@pytest.mark.parametrize("kafka", ["2.8.2", "3.9.1"], indirect=True)
def test_every_codec_and_transactions_are_copied_read_and_trimmed(kafka: RealKafka, tmp_path: Path) -> None:
    topic, client = "orders", kafka.client
    site = LiveSite(kafka, tmp_path, (topic,), {"topics": {topic: TRIMMED}})
    client.create_topic(topic, len(CODECS), SMALL_SEGMENTS | LONG)
    for number, codec in enumerate(CODECS):
        records = varied_records(700, seed=number)
        client.produce(topic, records, partition=number, codec=codec, batch_num_messages=40)
    producer = client.producer(transactional_id=topic, enable_idempotence="true", batch_num_messages=10)
    producer.init_transactions()
    for turn in range(6):
        producer.begin_transaction()
        send(producer, topic, 0, varied_records(60, seed=turn))
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)()
    client.wait_until_decided(topic)
    client.produce(topic, varied_records(300, seed=9), batch_num_messages=20)

    while site.copied():
        pass

    for number in range(len(CODECS)):
        assert ensure_as_stored(site, number, times_of="records") >= len(site.local(number)) - 2
    with site.open() as remote_log:
        end = finished(remote_log)[-1].end_offset
    committed = [one for one in client.consume_all(topic, isolation="read_committed") if one.offset <= end]
    assert read(site, Isolation.READ_COMMITTED) == committed
    site.audited()
    beside = LiveSite(kafka, tmp_path / "beside", (topic,), {"broker.log.dirs": {"1": str(kafka.log_dir)}})
    beside.root.mkdir()
    copied = beside.run("copy", "--json")
    assert (copied.exit_code, copied.err) == (0, "")
    assert len(copied.rows) == sum(len(site.local(number)) - 1 for number in range(len(CODECS)))
    beside.audited()
    assert site.run("doctor").exit_code == 0
    assert site.run("topics", "advise").exit_code == 0
    trim = site.run("retain", "--json")
    assert trim.exit_code == 0, trim.err
    assert {row["new_local_start"] for row in trim.rows if row["partition"] == f"{topic}-0"} == {end + 1}
    assert read(site, Isolation.READ_COMMITTED) == committed


@pytest.mark.parametrize("kafka", ["2.8.2"], indirect=True)
def test_older_message_formats_are_copied_by_fetch_and_read(kafka: RealKafka, tmp_path: Path) -> None:
    client, topics = kafka.client, {f"v{magic}-{codec}": magic for magic in (0, 1) for codec in OLDER_CODECS}
    site = LiveSite(kafka, tmp_path, tuple(topics))
    for topic, magic in topics.items():
        codec = topic.partition("-")[2].replace("none", "uncompressed")
        config = {"segment.bytes": "2000", "message.format.version": FORMATS[magic], "compression.type": codec}
        client.create_topic(topic, 1, config | LONG)
        records = [replace(record, headers=()) for record in golden_records(300, seed=magic)]
        client.produce(topic, records, batch_num_messages=6)
    while site.copied():
        pass

    with site.open() as remote_log, BlockingLogReader(RemoteLogReader(remote_log.context, remote_only=True)) as reader:
        for topic in topics:
            partition = remote_log.find_partition(topic, 0)
            *_, last = remote_log.context.segments.list_remote_log_segments(partition)
            expected = [record for record in client.consume_all(topic) if record.offset <= last.end_offset]
            assert list(reader.records(partition, 0)) == expected
    site.audited()


def is_created(client: RealKafkaClient, topic: str) -> bool:
    """Create a topic, unless there is one still: the controller deletes it after it has answered."""
    try:
        client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


@pytest.mark.parametrize("kafka", [WITHOUT_IDS], indirect=True)
def test_without_topic_ids_records_are_copied_and_nothing_is_trimmed(kafka: RealKafka, tmp_path: Path) -> None:
    topic, client = "orders", kafka.client
    site = LiveSite(kafka, tmp_path, (topic,), {"topics": {topic: TRIMMED}})
    assert client.create_topic(topic, 1, SMALL_SEGMENTS | LONG) == ""
    client.produce(topic, varied_records(700, seed=1), batch_num_messages=40)
    copied = site.copied()
    assert ensure_as_stored(site, times_of="records") == len(copied)
    site.audited()

    client.produce(topic, varied_records(300, seed=2), batch_num_messages=40)
    copied += site.copied()
    assert ensure_as_stored(site, times_of="records") == len(copied)
    trim = site.run("retain")
    assert trim.exit_code == 1
    assert mentions(trim.err, "topic no id")
    assert client.consume_all(topic)[0].offset == 0

    client.delete_topic(topic)
    wait_for(lambda: is_created(client, topic), lambda: "the topic is not deleted")
    client.produce(topic, varied_records(2000, seed=2), batch_num_messages=40)
    again = site.run("copy", "--json")

    assert (again.exit_code, again.rows) == (1, [])
    assert mentions(again.err, f"{topic}-0", "deleted and created again", "inter.broker.protocol.version")
    site.audited()
