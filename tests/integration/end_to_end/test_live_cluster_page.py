"""The commands of docs/live-cluster.md work as the page promises, beside own and managed brokers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.docs_pages import Page
from servers.guarded_kafka import PASSWORD, READS, GuardedKafka
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.kafka_clients import RealKafkaClient
from support.live_sites import SMALL_SEGMENTS
from support.records import varied_records
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE
from tiered_storage_airflow.embedded.processes import wait_until

PROJECT = Path(__file__).parents[3]
PAGE = Page.named("live-cluster.md")
OWN, MANAGED, BESIDE = "From nothing to the first tiered topic", "A managed cluster", "Beside the brokers' disks"
TRIM = "Delete at the brokers what is remote"
TOOL = "org.apache.kafka.tools.AclCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
[(SHOWN, CLOCK)] = re.findall(r"`kafka-console-consumer.sh (--property [^`]*)`, and compare with `([^`]*)`", PAGE.text)
"""How the page compares a broker's clock. Read by day too: only a nightly test runs it."""
DELETE = "delete-topic orders"
IN_THE_TEXT = ("topics [a-z]+ '?orders[^`]*", "topics advise", "audit", DELETE)
"""Commands of ours in sentences, which have all that they need."""


def fill(client: RealKafkaClient) -> None:
    client.create_topic("orders", 1, SMALL_SEGMENTS)
    client.produce("orders", varied_records(200, seed=1), batch_num_messages=20)


def copied(config: Path) -> int:
    return len(run("segments", "--json", "--config", config).rows)


def states(config: Path, topic: str) -> list[str]:
    """Return the states of a topic's remote segments."""
    return [row["state"] for row in run("segments", "--topics", topic, "--json", "--config", config).rows]


def test_the_pages_steps_for_own_brokers_lead_to_a_tiered_topic(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        fill(kafka.client)
        config = PAGE.write_settings(OWN, tmp_path, bootstrap_servers=kafka.bootstrap_servers)

        assert PAGE.run_ours(OWN, config)[-1] == "audit"
        assert copied(config)
        assert PAGE.run_ours(TRIM, config)[-1] == "retain"
        run_those_in_the_text(kafka.client, config)


def run_those_in_the_text(client: RealKafkaClient, config: Path) -> None:
    """Run the commands in the page's sentences and tables beside a broker that has `orders`, and see what they do."""
    client.create_topic("orders-eu", 1, SMALL_SEGMENTS)
    seen: list[str] = []
    found = re.findall(rf"`(?:tiered-storage )?({'|'.join(IN_THE_TEXT)})`", PAGE.text)
    for words in map(shlex.split, dict.fromkeys(found)):
        if words[0] == "delete-topic":
            assert run("topics", "allow-deletion", "orders", "--only", "remote", "--config", config).exit_code == 0
        result = run(*words, "--config", config)
        assert result.exit_code == 0, (words, result.out, result.err)
        seen.append(" ".join(words[:2]))
        if words[:2] in (["topics", "enable"], ["topics", "disable"]):
            before = copied(config)
            client.produce("orders-eu", varied_records(200, seed=3), batch_num_messages=20)
            assert run("copy", "--config", config).exit_code == 0
            assert (copied(config) > before) == (words[1] == "enable")
    assert set(seen) == {*(f"topics {each}" for each in ("enable", "disable", "advise", "set")), "audit", DELETE}
    assert run("expire", "--config", config).exit_code == 0
    assert "COPY_SEGMENT_FINISHED" not in states(config, "orders")
    assert set(states(config, "orders-eu")) == {"COPY_SEGMENT_FINISHED"}


@pytest.mark.nightly
def test_the_page_shows_how_far_a_brokers_clock_is_off(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        kafka.client.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        before = int(subprocess.check_output(["bash", "-ec", CLOCK]))
        kafka.client.produce("stamped", varied_records(1, seed=1))
        asked = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", "stamped", "--from-beginning")
        found = kafka.tool(CONSUMER, *asked, "--max-messages", "1", *SHOWN.split())
        after = int(subprocess.check_output(["bash", "-ec", CLOCK]))

    [stamp] = re.findall(r"LogAppendTime:(\d+)", found)
    assert before <= int(stamp) <= after


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_from_a_clone_to_the_first_scheduled_copy_every_command_works_as_written(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    """`make setup` really installs, `make up` really starts Airflow, and its schedule copies what came meanwhile."""
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        fill(kafka.client)
        settings = PAGE.write_settings(OWN, tmp_path, bootstrap_servers=kafka.bootstrap_servers)

        walk_in_a_clone(kafka.client, settings, tmp_path / "clone")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_from_a_clone_to_the_first_scheduled_copy_of_a_managed_cluster(
    guarded_broker: GuardedKafka, tmp_path: Path
) -> None:
    """Airflow logs in by the connection of the page."""
    connection = placed(PAGE.blocks(MANAGED, "sh")[-1], guarded_broker)
    assert "AIRFLOW_CONN_" in connection
    properties = tmp_path / "srv" / "remote-log" / "client.properties"
    kafka = guarded_broker.kafka
    with managed(guarded_broker, tmp_path):
        settings = PAGE.write_settings(MANAGED, tmp_path, bootstrap_servers=kafka.address("SASLTLS"))
        grant_as_shown(guarded_broker, tmp_path)

        def break_file() -> None:
            # Whoever goes by the file from here on cannot log in.
            properties.write_text(properties.read_text().replace(PASSWORD, "another"))

        walk_in_a_clone(kafka.client, settings, tmp_path / "clone", f"{connection}\n", break_file)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_packages_of_a_celery_worker_install_together(tmp_path: Path) -> None:
    [line] = PAGE.lines(BESIDE)
    assert line.startswith("pip install . ")
    venv.create(tmp_path / "venv", with_pip=True)
    shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns(".*", "__pycache__"))

    words = [str(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", *shlex.split(line)[2:]]
    done = subprocess.run(words, cwd=tmp_path / "project", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "venv" / "bin" / "celery").exists()


def before_and_from_airflow() -> tuple[list[str], list[str]]:
    """Return the page's commands before `make up`, and from that on."""
    lines = [line.strip() for line in "".join(PAGE.blocks(OWN, "sh")).splitlines()]
    at = lines.index("make up")
    assert lines[0] == "make setup"
    return lines[:at], lines[at:]


def walk_in_a_clone(
    client: RealKafkaClient,
    settings: Path,
    folder: Path,
    before_each: str = "",
    before_airflow: Callable[[], None] = lambda: None,
) -> None:
    """Run the page's commands in a clone that has `settings`, those of Airflow after `before_each`.

    Records are sent before Airflow starts: see that its schedule copies them.
    """
    by_hand_lines, of_airflow = before_and_from_airflow()
    with cloned(folder) as clone:
        config = settings.rename(clone / "include" / "tiered_storage.yaml")
        in_the_clone(clone, by_hand_lines)
        by_hand = copied(config)
        assert by_hand
        client.produce("orders", varied_records(200, seed=2), batch_num_messages=20)
        before_airflow()

        in_the_clone(clone, [f"{before_each}{line}" for line in of_airflow])

        ensure_the_schedule_copies(config, by_hand)


def ensure_the_schedule_copies(config: Path, by_hand: int) -> None:
    """See that a scheduled run of the Airflow that is up copies more than was copied `by_hand`."""
    running = services.running_airflow(load_settings(config, environ={}).state_directory)
    assert running is not None
    assert wait_until(lambda: copied(config) > by_hand, 600)
    with services.connect(running) as api:
        assert {dag.dag_id for dag in api.dags() if not dag.is_paused and dag.dag_id == "copy_segments"}


@contextmanager
def cloned(clone: Path) -> Iterator[Path]:
    """Copy the project's files, without its virtual environment and state, for a `with`; end its Airflow."""
    named = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, named.split("\0")):
        if (PROJECT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, clone / name)
    try:
        yield clone
    finally:
        in_the_clone(clone, ["make down"])


def in_the_clone(clone: Path, lines: list[str]) -> None:
    """Run each line in a shell there; each has to succeed. Airflow gets a free port and keeps its state in SQLite."""
    left_out = ("AIRFLOW", "TIERED_STORAGE", "PYTHON", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environ |= {"PORT": str(free_ports(1)[0]), DATABASE_VARIABLE: ""}
    for line in lines:
        done = subprocess.run(
            ["bash", "-ec", line], cwd=clone, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_the_walk_beside_a_managed_cluster_leads_to_a_tiered_topic(
    guarded_broker: GuardedKafka, tmp_path: Path
) -> None:
    with managed(guarded_broker, tmp_path):
        config = PAGE.write_settings(MANAGED, tmp_path, bootstrap_servers=guarded_broker.kafka.address("SASLTLS"))
        before = run("copy", "--config", config, "--topics", "orders")
        assert before.exit_code == 1
        grant_as_shown(guarded_broker, tmp_path)

        assert PAGE.run_ours(OWN, config)[-1] == "audit"
        assert copied(config)
        assert "--cluster" not in run("doctor", "--config", config).out


@contextmanager
def managed(guarded: GuardedKafka, root: Path) -> Iterator[None]:
    """Have a topic `orders`, and the page's file of properties below `root`; at the end, nobody has a right to it."""
    fill(guarded.kafka.client)
    [login] = PAGE.blocks(MANAGED, "properties")
    file = root / "srv" / "remote-log" / "client.properties"
    file.parent.mkdir(parents=True)
    file.write_text(placed(re.sub(r"^ +", "", login, flags=re.MULTILINE), guarded))
    file.chmod(0o600)
    yield
    for right in READS:
        guarded.revoke("orders", "User:remote-log", right)
    guarded.kafka.client.delete_topic("orders")


def grant_as_shown(guarded: GuardedKafka, root: Path) -> None:
    """Run the page's commands that grant rights."""
    (root / "admin.properties").write_text("")
    tools = [words[1:] for words in PAGE.commands(MANAGED) if words[0] == "kafka-acls.sh"]
    assert len(tools) == 2
    changed = {
        "b-1.example.com:9096": guarded.kafka.bootstrap_servers,
        "admin.properties": str(root / "admin.properties"),
    }
    for words in tools:
        guarded.kafka.tool(TOOL, *(changed.get(word, word) for word in words))


def placed(text: str, guarded: GuardedKafka) -> str:
    """Return the page's properties with the test's password and authority."""
    return text.replace("...", PASSWORD).replace("/etc/kafka/ca.pem", f"{guarded.folder}/ca.pem")


def test_the_connection_of_the_page_has_the_properties_of_its_file(guarded_broker: GuardedKafka) -> None:
    [shown] = re.findall(r"export AIRFLOW_CONN_KAFKA_ORDERS='(.*?)'\n", "".join(PAGE.blocks(MANAGED, "sh")), re.DOTALL)
    connection = json.loads(placed(shown, guarded_broker))
    [login] = PAGE.blocks(MANAGED, "properties")
    lines = (line.strip().partition("=") for line in placed(login, guarded_broker).splitlines())
    expected: Mapping[str, str] = {name: value for name, _, value in lines}

    assert connection["conn_type"] == "kafka"
    assert connection["extra"] == expected
    parse_client_settings({"bootstrap.servers": "b-1.example.com:9096", **expected}, "the page")
