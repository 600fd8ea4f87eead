from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.command_line import mentions, run
from support.remote_logs import a_remote_log
from tiered_storage.clock import wall_clock
from tiered_storage.doctor import source_cluster
from tiered_storage.doctor.check import Status
from tiered_storage.doctor.source_cluster import check_clock, check_names
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_QUORUM
from unit.tiered_storage.kafka_wire.scripted_cluster import Scripted, served


def test_a_cluster_that_does_not_answer_is_not_waited_for_as_long_as_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_cluster, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    config = tmp_path / "settings.yaml"
    config.write_text(f"bootstrap.servers: {address}\nstate.directory: {tmp_path / 'state'}\n")

    result = run("doctor", "--config", config, "--json")

    assert result.exit_code == 1
    assert address in result.out
    assert "within 0.2 s" in result.out


def test_without_the_right_to_see_the_controllers_clock_the_right_is_named(tmp_path: Path) -> None:
    settings = a_remote_log(tmp_path).settings()
    scripted = Scripted(fails={(1, DESCRIBE_QUORUM.key, 0): [31]}, clocks={9: wall_clock()})
    with served(scripted) as client:
        [refused], [seen] = (list(check_clock(client, settings)) for _ in range(2))

    assert refused.status is Status.NOTE
    assert mentions(refused.advice, "--operation Describe --cluster")
    assert (seen.status, seen.advice) == (Status.OK, "")


def test_settings_that_name_a_topic_in_another_case_are_named(tmp_path: Path) -> None:
    ignoring = ["clicks_eu", "others"]
    named: dict[str, dict[str, object]] = {"orders": {}, "Clicks": {}}
    settings = a_remote_log(tmp_path, topics=named, local_retention_topics_ignoring_groups=ignoring).settings()
    found = list(check_names({"orders", "clicks", "clicks.eu"}, settings))

    assert {each.status for each in found} == {Status.NOTE}
    topics, groups = found
    assert mentions(topics.message, "topics names Clicks", "clicks differs")
    assert mentions(groups.message, "local.retention.topics.ignoring.groups names clicks_eu", "clicks.eu differs")
