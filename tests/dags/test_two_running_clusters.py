"""Two running clusters in one Airflow, each by its own connection and settings file, with a topic of the same name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from airflow.api_fastapi.app import create_app
from starlette.testclient import TestClient

from dags.airflow_runs import AirflowHome
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.read_service_site import login
from support.records import varied_records
from support.tiered_site import TIERED, TieredSite
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.hooks.remote_log import RemoteLogHook

BELOW = {None: "/remote-log", "west": "/remote-log/clusters/west"}
WORDS = {None: "first", "west": "west"}


@pytest.fixture(scope="module")
def west_kafka(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("west-kafka")) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic of each cluster."""
    return str(request.node.name).removeprefix("test_")


@pytest.fixture
def kafkas(real_kafka: RealKafka, west_kafka: RealKafka) -> dict[str | None, RealKafka]:
    """The broker of each cluster."""
    return {None: real_kafka, "west": west_kafka}


@pytest.fixture
def sent(kafkas: dict[str | None, RealKafka], topic: str) -> dict[str | None, list[Record]]:
    """What each cluster's topic holds: other records, and another number of them."""
    found: dict[str | None, list[Record]] = {}
    for number, (name, kafka) in enumerate(kafkas.items()):
        kafka.client.create_topic(topic, 1, {"internal.segment.bytes": "16384", "segment.ms": str(1 << 60)})
        records = varied_records(400 + 200 * number, seed=number)
        found[name] = kafka.client.produce(topic, records, batch_num_messages=20)
    return found


@pytest.fixture
def roots(
    airflow: AirflowHome,
    site: TieredSite,
    kafkas: dict[str | None, RealKafka],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str | None, Path]:
    """The state directory of each cluster, whose settings name nothing but its own connection."""
    rights = site.root / "rights.yaml"
    rights.write_text("roles: {OP: {read: ['*']}}\n")
    found: dict[str | None, Path] = {}
    for name, kafka in kafkas.items():
        connection = f"kafka_{WORDS[name]}"
        extra = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "of-other-users"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{connection.upper()}", json.dumps({"conn_type": "kafka", "extra": extra}))
        found[name] = site.root / WORDS[name]
        settings = {
            "cluster.connection": connection,
            "state.directory": str(found[name]),
            "read.service.rights.file": str(rights),
            "topics": {topic: dict(TIERED)},
        }
        file = site.config if name is None else site.config.with_name(f"tiered_storage.{name}.yaml")
        file.write_text(yaml.safe_dump(settings))
    airflow.refresh()
    return found


@pytest.mark.usefixtures("spark")
def test_each_is_copied_by_its_own_dag_and_nothing_of_them_mixes(
    airflow: AirflowHome,
    kafkas: dict[str | None, RealKafka],
    sent: dict[str | None, list[Record]],
    roots: dict[str | None, Path],
    topic: str,
) -> None:
    ensure_each_is_copied(airflow, kafkas, sent, roots, topic)


@pytest.mark.nightly
@pytest.mark.usefixtures("real_spark")
def test_each_is_copied_by_a_spark_of_its_own(
    airflow: AirflowHome,
    kafkas: dict[str | None, RealKafka],
    sent: dict[str | None, list[Record]],
    roots: dict[str | None, Path],
    topic: str,
) -> None:
    ensure_each_is_copied(airflow, kafkas, sent, roots, topic)


def ensure_each_is_copied(
    airflow: AirflowHome,
    kafkas: dict[str | None, RealKafka],
    sent: dict[str | None, list[Record]],
    roots: dict[str | None, Path],
    topic: str,
) -> None:
    """Copy both, the second with an answer to its form; look at metadata, store, pages, read service and forms."""
    copied = airflow.run("copy_segments")
    assert copied.state == "success", copied.messages
    assert not list(roots["west"].rglob("*.log"))
    dry = airflow.run("copy_segments__west", {"topics": topic, "dry_run": True})
    assert dry.state == "success", dry.messages
    copied = airflow.run("copy_segments__west", {"topics": topic})
    assert copied.state == "success", copied.messages
    ids = {name: kafka.client.cluster_id() for name, kafka in kafkas.items()}
    topic_ids = {name: kafka.client.topic_id(topic) for name, kafka in kafkas.items()}
    assert len({*ids.values(), *topic_ids.values()}) == 4

    for name, root in roots.items():
        objects = [path.relative_to(root / "remote") for path in root.rglob("*.log")]
        assert {path.parts[:2] for path in objects} == {(ids[name], f"{topic}-{topic_ids[name]}")}
        with RemoteLogHook(cluster=name).get_conn() as remote_log:
            partitions = remote_log.context.segments.list_partitions()
        assert [(each.cluster_id, each.topic_id) for each in partitions] == [(ids[name], topic_ids[name])]

    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        for name, below in BELOW.items():
            ensure_shown(client, below, sent[name], topic, topic_ids[name])
            ensure_form(client, "copy_segments" if name is None else f"copy_segments__{name}")


def ensure_shown(client: TestClient, below: str, sent: list[Record], topic: str, topic_id: str) -> None:
    """Look at a cluster's pages and its read service: they have the records of that cluster, as far as copied."""
    operator = login("somebody", "OP")
    shown = client.get(f"{below}/v1/topics", headers=operator).json()["topics"]
    # The first cluster's broker has topics of other tests too.
    assert [each["topic_id"] for each in shown if each["topic"] == topic] == [topic_id]
    answer = client.get(f"{below}/v1/topics/{topic}/partitions/0/records?max_records=10000", headers=operator)
    rows = [json.loads(line) for line in answer.text.splitlines()]
    found = [(row["offset"], base64.b64decode(row["value"] or "")) for row in rows]
    assert len(found) > 100
    assert found == [(each.offset, each.value or b"") for each in sent[: len(found)]]
    page = client.get(f"{below}/page/", headers=operator)
    assert f'href="{below}/page/topics/{topic}"' in page.text
    partition = client.get(f"{below}/page/topics/{topic}/partitions/0", headers=operator)
    assert (partition.status_code, topic_id in partition.text) == (200, True)


def ensure_form(client: TestClient, dag_id: str) -> None:
    """Look at what the form of a DAG asks for."""
    shown = client.get(f"/api/v2/dags/{dag_id}/details", headers=login("admin", "ADMIN"))
    assert shown.status_code == 200
    assert {"topics", "dry_run"} <= shown.json()["params"].keys()
