"""The commands of docs/live-cluster.md do what is said there, beside brokers of one's own and managed ones."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from servers.guarded_kafka import PASSWORD, GuardedKafka
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.kafka_clients import RealKafkaClient
from support.live_sites import SMALL_SEGMENTS
from support.records import varied_records
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings

PAGE = (Path(__file__).parents[2] / "docs" / "live-cluster.md").read_text("utf-8")
MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
OWN, MANAGED = "From nothing to the first tiered topic", "A managed cluster"
TRIM = "Delete at the brokers what is remote"
TOOL = "org.apache.kafka.tools.AclCommand"


def blocks(title: str, language: str) -> list[str]:
    """Return the code blocks of one language in a chapter of the page."""
    chapter = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", chapter, re.DOTALL | re.MULTILINE)


def commands(title: str) -> list[list[str]]:
    """Return the words of each command in a chapter's blocks for a shell."""
    lines = "".join(blocks(title, "sh")).replace("\\\n", "").splitlines()
    return [shlex.split(line, comments=True) for line in lines if not line.lstrip().startswith(("export", '"'))]


def run_all(title: str, config: Path) -> list[str]:
    """Run our commands of a chapter, each of which succeeds; return their names."""
    ours = [words[1:] for words in commands(title) if words[0] == ".venv/bin/tiered-storage"]
    for words in ours:
        result = run(*words, "--config", config)
        assert result.exit_code == 0, (words, result.out, result.err)
    return [words[0] for words in ours]


def configured(title: str, root: Path, servers: str) -> Path:
    """Write the settings of a chapter, with their folders below `root`."""
    [text] = blocks(title, "yaml")
    given = yaml.safe_load(text.replace("/srv/", f"{root}/srv/")) | {"bootstrap.servers": servers}
    config = root / "settings.yaml"
    config.write_text(yaml.safe_dump(given))
    return config


def fill(client: RealKafkaClient) -> None:
    client.create_topic("orders", 1, SMALL_SEGMENTS)
    client.produce("orders", varied_records(200, seed=1), batch_num_messages=20)


def copied(config: Path) -> int:
    return len(run("segments", "--json", "--config", config).rows)


def test_the_walk_beside_brokers_of_ones_own_leads_to_a_tiered_topic(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        fill(kafka.client)
        config = configured(OWN, tmp_path, kafka.bootstrap_servers)

        assert run_all(OWN, config)[-1] == "audit"
        assert copied(config)
        assert run_all(TRIM, config)[-1] == "retain"
    made = [words for words in commands(OWN) if words[0] == "make"]
    assert [words[1] for words in made] == ["setup", "up", "airflow"]
    assert all(re.search(rf"^{words[1]}: ", MAKEFILE, re.MULTILINE) for words in made)


def test_the_walk_beside_a_managed_cluster_leads_to_a_tiered_topic(
    guarded_broker: GuardedKafka, tmp_path: Path
) -> None:
    kafka = guarded_broker.kafka
    fill(kafka.client)
    config = configured(MANAGED, tmp_path, kafka.address("SASLTLS"))
    [login] = blocks(MANAGED, "properties")
    file = tmp_path / "srv" / "remote-log" / "client.properties"
    file.parent.mkdir(parents=True)
    file.write_text(placed(re.sub(r"^ +", "", login, flags=re.MULTILINE), guarded_broker))
    file.chmod(0o600)
    before = run("copy", "--config", config, "--topics", "orders")
    assert before.exit_code == 1
    (tmp_path / "admin.properties").write_text("")
    tools = [words[1:] for words in commands(MANAGED) if words[0] == "kafka-acls.sh"]
    assert len(tools) == 2
    for words in tools:
        changed = {"b-1.example.com:9096": kafka.bootstrap_servers, "admin.properties": f"{tmp_path}/admin.properties"}
        kafka.tool(TOOL, *(changed.get(word, word) for word in words))

    assert run_all(OWN, config)[-1] == "audit"
    assert copied(config)
    assert "--cluster" not in run("doctor", "--config", config).out


def placed(text: str, guarded: GuardedKafka) -> str:
    """Return the page's properties with the test's password and authority."""
    return text.replace("...", PASSWORD).replace("/etc/kafka/ca.pem", f"{guarded.folder}/ca.pem")


def test_the_connection_of_the_page_has_the_properties_of_its_file(guarded_broker: GuardedKafka) -> None:
    [shown] = re.findall(r"export AIRFLOW_CONN_KAFKA_ORDERS='(.*?)'\n", "".join(blocks(MANAGED, "sh")), re.DOTALL)
    connection = json.loads(placed(shown, guarded_broker))
    [login] = blocks(MANAGED, "properties")
    lines = (line.strip().partition("=") for line in placed(login, guarded_broker).splitlines())
    expected: Mapping[str, str] = {name: value for name, _, value in lines}

    assert connection["conn_type"] == "kafka"
    assert connection["extra"] == expected
    parse_client_settings({"bootstrap.servers": "b-1.example.com:9096", **expected}, "the page")
