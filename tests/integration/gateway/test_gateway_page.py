"""Every command in a block of docs/gateway.md works as the page promises, beside a real broker.

The commands that install the systemd unit and build the image are not on the page: they stand in the files in
docs/gateway, since they need root, systemd and a container engine. tests/unit/test_gateway_files.py checks these files
by `systemd-analyze verify` and by parsing: their commands are checked for the files that they name, and not run.
`make setup` of live-cluster.md, which the first step names, is run by the nightly test of that page.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from integration.docs_pages import Page, is_ours, run_ours
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.gateways import running_gateway
from support.kafka_clients import RealKafkaClient
from support.live_sites import SMALL_SEGMENTS, log_start
from support.records import varied_records
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

PAGE, BEFORE = Page.named("gateway.md"), Page.named("live-cluster.md")
COPIED = "From nothing to the first tiered topic"
READ, ALONE, DELETED = (
    "From nothing to a consumer that reads trimmed offsets",
    "Without brokers",
    "Deletions by clients",
)
START = ".venv/bin/tiered-storage gateway"
BROKER, GATEWAY = "kafka-1:9092", "localhost:19092"
FIRST_THREE = ["Offset:0", "Offset:1", "Offset:2"]


@dataclass
class Walk:
    """A user with two terminals: one for the gateway, which runs until the `with` ends, one for all other commands."""

    root: Path
    servers: str
    port: int
    config: Path
    ran: list[str] = field(default_factory=list)

    def follow(self, title: str, gateways: ExitStack) -> list[list[str]]:
        """Run every command of a chapter as it is typed, but for addresses.

        Return the words that each command other than ours wrote.
        """
        written: list[list[str]] = []
        for line, words in zip(PAGE.lines(title), PAGE.commands(title), strict=True):
            if line == START:
                gateways.enter_context(running_gateway(self.config, self.port))
            elif is_ours(words):
                run_ours(words, self.config)
            else:
                written.append(self.typed(line).split())
            self.ran.append(line)
        return written

    def typed(self, line: str) -> str:
        """Run a line in a shell that finds Kafka's scripts; return its output."""
        placed = line.replace(BROKER, self.servers).replace(GATEWAY, f"localhost:{self.port}")
        path = {"PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-ec", placed],
            cwd=self.root,
            env={**os.environ, **path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


def every_line() -> list[str]:
    return [line for title in PAGE.titles() for line in PAGE.lines(title)]


def test_every_block_of_the_page_is_one_that_the_walk_runs_or_settings() -> None:
    """No block hides a command from the walk: by another language, by none, or before the first chapter."""
    fences = re.findall(r"^ *(?:`{3,}|~{3,}) *(.*)$", PAGE.text, re.MULTILINE)
    seen = sum(len(PAGE.blocks(title, language)) for title in PAGE.titles() for language in ("sh", "yaml"))

    assert set(fences[::2]) == {"sh", "yaml"}
    assert set(fences[1::2]) == {""}
    assert len(fences) == 2 * seen
    assert {title for title in PAGE.titles() if PAGE.lines(title)} == {READ, ALONE, DELETED}


def test_every_command_of_the_page_works_as_written(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    kafka_programs.write_scripts(tmp_path / "bin")
    port = free_first_port([1])
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        kafka.client.create_topic("orders", 1, SMALL_SEGMENTS)
        sent = kafka.client.produce("orders", varied_records(200, seed=1), batch_num_messages=20)
        beside = {"bootstrap_servers": kafka.bootstrap_servers, "gateway_port": port}
        config = BEFORE.write_settings(COPIED, tmp_path, **beside)
        BEFORE.run_ours(COPIED, config)
        walk = Walk(tmp_path, kafka.bootstrap_servers, port, config)

        with ExitStack() as gateways:
            at_the_broker, at_the_gateway, records = walk.follow(READ, gateways)
            trimmed = log_start(kafka, "orders")
            assert trimmed > 3
            assert (at_the_broker, at_the_gateway) == ([f"orders:0:{trimmed}"], ["orders:0:0"])
            assert shown_offsets(records) == FIRST_THREE
            sent += kafka.client.produce("orders", varied_records(20, seed=2))
            assert RealKafkaClient(f"127.0.0.1:{port}").consume_all("orders") == sent

        [topic] = (tmp_path / "srv" / "remote-log" / "store").glob("*/orders-*")
        PAGE.write_settings(ALONE, tmp_path, cluster_id=topic.parent.name, gateway_port=port)
        with ExitStack() as gateways:
            [records] = walk.follow(ALONE, gateways)
            assert shown_offsets(records) == FIRST_THREE

        BEFORE.write_settings(COPIED, tmp_path, **beside)
        with ExitStack() as gateways:
            gateways.enter_context(running_gateway(config, port))
            _, deleted, _ = walk.follow(DELETED, gateways)
            assert deleted[-1] == "10"
        assert run("expire", "--config", config).exit_code == 0
        rows = run("segments", "--json", "--config", config).rows
        assert {row["state"] for row in rows} == {"DELETE_SEGMENT_STARTED"}
    assert sorted(walk.ran) == sorted(every_line())


def shown_offsets(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("Offset:")]
