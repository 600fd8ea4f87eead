"""A gateway without brokers: clients that assign partitions, and Kafka's tools, read a log directory and the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden.aiokafka_clients import consume_all as consume_with_aiokafka
from integration.gateway.hostile_clients import HOSTILE, connected, is_closed_by_the_other_side, requests, send_anything
from integration.gateway.remote_topics import fetch_until_answered
from integration.gateway.standalone_gateways import DECIDED, PARTITIONS, PLAIN, TOPIC_IDS, StandaloneSite, written_site
from integration.java_consumer import consume_with_java, java_lines
from integration.kafka_python_consumer import consume_all as consume_with_kafka_python
from integration.spark_kafka_source import BATCH, STREAM, read_with_spark
from servers.kafka_programs import KafkaPrograms
from support.command_line import run
from support.gateways import RunningGateway, running_gateway
from support.kafka_clients import REQUEST_SECONDS, Isolation, RealKafkaClientError
from support.records import USUAL_EXAMPLES, varied_records
from support.waiting import wait_for
from tiered_storage.errors import ClusterRefusedError, SourceClusterError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

NO_GROUPS = "it has no consumer groups: assign partitions and offsets instead"
READ_ONLY = "it is read-only"
CONNECTIONS = "remote_log_gateway_connections "
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> StandaloneSite:
    return written_site(tmp_path_factory.mktemp("standalone"), {"gateway.metrics.port": free_first_port([0])})


@pytest.fixture(scope="module")
def gateway(site: StandaloneSite) -> Iterator[RunningGateway]:
    with running_gateway(site.config, site.port) as started:
        yield started


def wire(gateway: RunningGateway) -> ClusterClient:
    return ClusterClient.by_properties({"bootstrap.servers": gateway.bootstrap_servers})


def listed(gateway: RunningGateway, spec: int, topic: str = PLAIN) -> ListedOffset:
    with wire(gateway) as client:
        [found] = client.list_offsets({TopicPartition(topic, 0): spec}).values()
    assert isinstance(found, ListedOffset)
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", [(PLAIN, 0), (PLAIN, 1), (DECIDED, 0)])
def test_librdkafka_reads_each_record_of_both_tiers_once(
    site: StandaloneSite, gateway: RunningGateway, partition: tuple[str, int], isolation: Isolation
) -> None:
    assert listed(gateway, OffsetSpec.EARLIEST_LOCAL, partition[0]).offset > 0
    wanted = site.records if isolation == "read_uncommitted" else site.committed

    found = gateway.client.consume_all(*partition, isolation=isolation)

    assert found == wanted[partition]


@pytest.mark.nightly
def test_sparks_kafka_source_reads_them_as_a_batch_and_as_a_stream(
    site: StandaloneSite, gateway: RunningGateway, state_directory: Path, tmp_path: Path
) -> None:
    found = read_with_spark(state_directory, tmp_path, gateway.bootstrap_servers, DECIDED)

    assert found == {BATCH: site.records[DECIDED, 0], STREAM: site.records[DECIDED, 0]}


@pytest.mark.parametrize(
    "consume", [consume_with_aiokafka, consume_with_kafka_python], ids=["aiokafka", "kafka-python"]
)
def test_python_clients_read_them_by_the_topics_name(
    site: StandaloneSite, gateway: RunningGateway, consume: Callable[[str, str, int], list[Record]]
) -> None:
    assert consume(gateway.bootstrap_servers, PLAIN, 1) == site.records[PLAIN, 1]


def test_clients_list_and_describe_what_is_served(site: StandaloneSite, gateway: RunningGateway) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, PLAIN)

    listing = admin.list_topics(timeout=REQUEST_SECONDS)
    cluster = admin.describe_cluster().result(REQUEST_SECONDS)
    configs = admin.describe_configs([resource])[resource].result(REQUEST_SECONDS)

    assert {name: len(topic.partitions) for name, topic in listing.topics.items()} == {PLAIN: PARTITIONS, DECIDED: 1}
    assert [f"{each.host}:{each.port}" for each in cluster.nodes] == [gateway.bootstrap_servers]
    assert cluster.cluster_id == listing.cluster_id == "standalone-gateways"
    assert gateway.client.topic_id(PLAIN) == TOPIC_IDS[PLAIN]
    assert configs["remote.storage.enable"].value == "true"
    assert configs["local.retention.bytes"].value == "20000"


def test_offsets_are_found_in_both_tiers(site: StandaloneSite, gateway: RunningGateway) -> None:
    sent = site.records[PLAIN, 0]
    largest = max(sent, key=lambda record: (record.timestamp, -record.offset))
    local_start = listed(gateway, OffsetSpec.EARLIEST_LOCAL).offset
    remote_end = listed(gateway, OffsetSpec.EARLIEST_PENDING_UPLOAD).offset

    assert 0 < local_start <= remote_end < len(sent)
    assert listed(gateway, OffsetSpec.EARLIEST).offset == 0
    assert listed(gateway, OffsetSpec.LATEST).offset == len(sent)
    assert listed(gateway, OffsetSpec.LATEST_TIERED).offset == remote_end - 1
    assert listed(gateway, OffsetSpec.MAX_TIMESTAMP)[:2] == (largest.offset, largest.timestamp)
    for record in (sent[0], sent[17], sent[len(sent) // 2], sent[-1]):
        first = next(one for one in sent if one.timestamp >= record.timestamp)
        assert listed(gateway, record.timestamp)[:2] == (first.offset, first.timestamp)
    assert listed(gateway, largest.timestamp + 1).offset == -1


def test_the_end_of_an_epoch_is_known(site: StandaloneSite, gateway: RunningGateway) -> None:
    with wire(gateway) as client:
        [found] = client.offsets_for_leader_epochs({TopicPartition(PLAIN, 0): 0}).values()

    assert found == EpochEnd(0, len(site.records[PLAIN, 0]))


@pytest.mark.parametrize("offset", [-1, 10_000_000])
def test_an_offset_outside_of_the_log_is_out_of_range(gateway: RunningGateway, offset: int) -> None:
    with wire(gateway) as client:
        assert fetch_until_answered(client, PLAIN, offset).error_code == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups_are_refused(gateway: RunningGateway, protocol: str) -> None:
    properties = {"group.id": "standalone", "group.protocol": protocol, "bootstrap.servers": gateway.bootstrap_servers}
    consumer = Consumer(properties)
    consumer.subscribe([PLAIN])
    try:
        message = consumer.poll(REQUEST_SECONDS)
    except KafkaException as error:
        refusal = error.args[0]
    else:
        assert message is not None
        refusal = message.error()
    finally:
        consumer.close()

    # The new protocol's failure is a fatal one, which has the code in its text only.
    assert refusal.code() in {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._FATAL}
    assert "Group authorization failed" in refusal.str()
    assert NO_GROUPS in gateway.log.read_text()


def test_offsets_of_groups_are_refused(gateway: RunningGateway) -> None:
    consumer = Consumer({"group.id": "standalone", "bootstrap.servers": gateway.bootstrap_servers})
    try:
        with pytest.raises(KafkaException) as committed:
            consumer.commit(offsets=[Assigned(PLAIN, 0, 5)], asynchronous=False)
        with pytest.raises(KafkaException) as asked:
            consumer.committed([Assigned(PLAIN, 0)], REQUEST_SECONDS)
    finally:
        consumer.close()

    for refused in (committed, asked):
        assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_producers_are_refused(gateway: RunningGateway) -> None:
    with pytest.raises(KafkaException) as fatal:
        gateway.client.producer(enable_idempotence="true").poll(REQUEST_SECONDS)
    with pytest.raises(RealKafkaClientError, match="Topic authorization failed"):
        gateway.client.produce(PLAIN, varied_records(1, seed=1))
    assert fatal.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert READ_ONLY in gateway.log.read_text()


def test_javas_console_consumer_reads_an_assigned_partition(
    site: StandaloneSite, gateway: RunningGateway, kafka_programs: KafkaPrograms
) -> None:
    sent = site.records[PLAIN, 1]

    found = consume_with_java(kafka_programs, PLAIN, 1, most=len(sent), bootstrap_servers=gateway.bootstrap_servers)

    assert found == java_lines(sent, 1)


def test_javas_console_consumer_ends_at_once_as_a_group(gateway: RunningGateway, kafka_programs: KafkaPrograms) -> None:
    shown = kafka_programs.tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", gateway.bootstrap_servers, "--topic", PLAIN, "--timeout-ms", "60000"),
    )

    assert shown == ""


def test_the_shell_for_offsets_shows_both_tiers(
    site: StandaloneSite, gateway: RunningGateway, kafka_programs: KafkaPrograms
) -> None:
    shown = kafka_programs.tool(
        f"{TOOLS}.GetOffsetShell", "--bootstrap-server", gateway.bootstrap_servers, "--topic", PLAIN, "--time", "latest"
    )

    assert shown.split() == [f"{PLAIN}:{number}:{len(site.records[PLAIN, number])}" for number in range(PARTITIONS)]


def test_the_store_alone_serves_what_was_copied(site: StandaloneSite) -> None:
    port = free_first_port([0])
    with running_gateway(site.store_alone(port), port) as alone:
        end = listed(alone, OffsetSpec.LATEST).offset
        found = alone.client.consume_all(PLAIN)
        committed = alone.client.consume_all(DECIDED, isolation="read_committed")

    assert 0 < end < len(site.records[PLAIN, 0])
    assert found == site.records[PLAIN, 0][:end]
    assert committed
    assert committed == site.committed[DECIDED, 0][: len(committed)]


@given(
    frames=st.lists(requests(PLAIN), min_size=1, max_size=8),
    piece=st.sampled_from([1 << 20, 7, 1]),
    reads=st.booleans(),
)
@settings(max_examples=3 * USUAL_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_requests_end_at_most_their_own_connection(
    site: StandaloneSite, gateway: RunningGateway, frames: list[bytes], piece: int, reads: bool
) -> None:
    send_anything(gateway, b"".join(frames), decode_uuid(TOPIC_IDS[PLAIN]), piece, reads=reads)


def test_garbled_requests_have_left_nothing(site: StandaloneSite, gateway: RunningGateway) -> None:
    def connections() -> float:
        shown = httpx.get(f"http://127.0.0.1:{site.properties['gateway.metrics.port']}/metrics").text
        return sum(float(line.split()[-1]) for line in shown.splitlines() if line.startswith(CONNECTIONS))

    wait_for(lambda: connections() == 0)
    assert "Traceback" not in gateway.log.read_text()
    assert gateway.client.consume_all(PLAIN) == site.records[PLAIN, 0]


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_unserved_request_ends_its_connection(gateway: RunningGateway, content: bytes) -> None:
    with connected(gateway) as opened:
        opened.sendall(content)
        assert is_closed_by_the_other_side(opened)


def test_only_this_machine_is_served_without_users(site: StandaloneSite) -> None:
    config = site.write_config("open.yaml", {"log.dirs": [str(site.logs)], "gateway.listen.host": "0.0.0.0"})

    done = run("gateway", "--config", config)

    assert done.exit_code == 1
    assert "gateway.listen.host" in done.err


USERS = {"reader": "a password", "describer": "another one", "unauthorized": "a third"}
RIGHTS = {"users": {"reader": {"read": [PLAIN]}, "describer": {"describe": ["*"]}}}


@dataclass(frozen=True)
class Guarded:
    """A gateway to which clients connect with TLS and log in; `ca` is a file that clients trust."""

    port: int
    ca: Path
    users: Path
    rights: Path

    def properties(self, user: str, password: str | None = None, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": USERS[user] if password is None else password,
        }

    def first_records(
        self, user: str, password: str | None = None, mechanism: str = "SCRAM-SHA-512"
    ) -> FetchedPartition:
        with ClusterClient.by_properties(self.properties(user, password, mechanism)) as client:
            return fetch_until_answered(client, PLAIN, 0)


@pytest.fixture(scope="module")
def guarded(site: StandaloneSite) -> Iterator[Guarded]:
    authority = trustme.CA()
    certificate, ca = site.root / "gateway.pem", site.root / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(ca)
    users, rights = site.root / "users.yaml", site.root / "rights.yaml"
    users.write_text(yaml.safe_dump(USERS))
    users.chmod(0o600)
    rights.write_text(yaml.safe_dump(RIGHTS))
    port = free_first_port([0])
    settings = {
        "log.dirs": [str(site.logs)],
        "gateway.port": port,
        "gateway.metrics.port": 0,
        "gateway.ssl.certificate.location": str(certificate),
        "gateway.users.file": str(users),
        "read.service.rights.file": str(rights),
    }
    with running_gateway(site.write_config("guarded.yaml", settings), port):
        yield Guarded(port, ca, users, rights)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_users_log_in_and_read_what_they_may(guarded: Guarded, mechanism: str) -> None:
    found = guarded.first_records("reader", USERS["reader"], mechanism)

    assert found.error_code == 0
    assert int.from_bytes(found.records[:8], "big") == 0


def test_librdkafka_logs_in_and_sees_what_it_may(guarded: Guarded) -> None:
    def topics(user: str) -> set[str]:
        return set(AdminClient({**guarded.properties(user)}).list_topics(timeout=REQUEST_SECONDS).topics)

    assert topics("reader") == {PLAIN}
    assert topics("describer") == {PLAIN, DECIDED}
    assert topics("unauthorized") == set()


def test_a_user_with_describe_alone_gets_offsets_but_no_records(guarded: Guarded) -> None:
    with ClusterClient.by_properties(guarded.properties("describer")) as client:
        [found] = client.list_offsets({TopicPartition(PLAIN, 0): OffsetSpec.LATEST}).values()
    assert isinstance(found, ListedOffset)

    assert guarded.first_records("describer").error_code == TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize("user", ["reader", "nobody"])
def test_a_wrong_password_is_refused(guarded: Guarded, user: str, mechanism: str) -> None:
    with pytest.raises(ClusterRefusedError, match=r"check sasl\.username and sasl\.password"):
        guarded.first_records(user, "guess", mechanism)


def test_without_a_login_nothing_is_answered(guarded: Guarded) -> None:
    properties = guarded.properties("reader") | {"security.protocol": "SSL"}

    with ClusterClient.by_properties(properties) as client, pytest.raises(SourceClusterError):
        client.metadata(seconds=5)


def test_a_password_that_was_changed_holds_from_the_next_login_on(guarded: Guarded) -> None:
    guarded.users.write_text(yaml.safe_dump(USERS | {"unauthorized": "changed"}))
    try:
        with pytest.raises(ClusterRefusedError):
            guarded.first_records("unauthorized")
        assert guarded.first_records("unauthorized", "changed").error_code == TOPIC_AUTHORIZATION_FAILED
    finally:
        guarded.users.write_text(yaml.safe_dump(USERS))


def test_a_fetch_that_waits_ends_when_its_right_is_withdrawn(guarded: Guarded) -> None:
    with ClusterClient.by_properties(guarded.properties("reader")) as client, ThreadPoolExecutor(1) as pool:
        [end] = client.list_offsets({TopicPartition(PLAIN, 0): OffsetSpec.LATEST}).values()
        assert isinstance(end, ListedOffset)
        position, limits = FetchPosition(PLAIN, 0, end.offset), FetchLimits(max_wait_seconds=60)
        waiting = pool.submit(client.fetch, [position], FetchBuffer(1 << 20), limits)
        # Without a right from the start it would not wait at all.
        time.sleep(2)
        assert not waiting.done()
        try:
            guarded.rights.write_text(yaml.safe_dump({"users": {}}))
            [found] = waiting.result(30).partitions
        finally:
            guarded.rights.write_text(yaml.safe_dump(RIGHTS))
    assert found.error_code == TOPIC_AUTHORIZATION_FAILED
