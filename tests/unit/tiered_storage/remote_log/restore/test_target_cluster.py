from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError, TargetClusterError
from tiered_storage.kafka_wire.connections import client_properties
from tiered_storage.kafka_wire.connections.client_properties import checked_properties, read_client_properties
from tiered_storage.remote_log.restore import target_cluster
from tiered_storage.remote_log.restore.cluster import ClusterTarget
from tiered_storage.remote_log.restore.target_cluster import TargetCluster

NOBODY = "127.0.0.1:1"


def test_a_cluster_that_does_not_answer_is_reported_in_one_message_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target_cluster, "ANSWER_SECONDS", 1)
    with pytest.raises(TargetClusterError, match=r"127\.0\.0\.1:1: topic orders: ") as error:
        TargetCluster(NOBODY, {}).topic("orders")
    assert error.value.retriable
    assert "Connection refused" in str(error.value)
    assert "is the address right" in str(error.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("security.protocol", "s3cr3t"), ("socket.timeout.ms", "s3cr3t"), ("ssl.cipher.suites", "s3cr3t")],
)
def test_a_value_that_the_client_does_not_take_is_refused_and_not_shown(name: str, value: str) -> None:
    cluster = TargetCluster(NOBODY, {"security.protocol": "ssl", name: value})
    for ask in (lambda: cluster.topic("orders"), lambda: cluster.producer("lz4")):
        with pytest.raises(ConfigurationError, match=f"{name}") as error:
            ask()
        assert "s3cr3t" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("name", sorted(client_properties._RUN_OR_LOAD_CODE))
def test_properties_that_load_or_run_code_are_refused_from_every_source(tmp_path: Path, name: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"# plugins\n{name}=/tmp/mine.so\n")
    with pytest.raises(ConfigurationError, match=f"line 2: {name} "):
        read_client_properties(path)
    for read in (
        lambda: checked_properties({name: "/tmp/mine.so"}, "connection lab"),
        lambda: TargetCluster(NOBODY, {name: "/tmp/mine.so"}),
    ):
        with pytest.raises(ConfigurationError, match=f"{name} is refused"):
            read()


@pytest.mark.parametrize(
    "name", ["debug", "stats_cb", "error_cb", "group.id", "statistics.interval.ms", "sasl.oauthbearer.config"]
)
def test_only_properties_for_connecting_and_security_are_accepted(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"connection lab: {name} "):
        checked_properties({name: "all"}, "connection lab")


def test_values_with_shell_characters_are_refused() -> None:
    shelled = {"sasl.kerberos.principal": "me; touch /tmp/here"}
    with pytest.raises(ConfigurationError, match=r"sasl\.kerberos\.principal") as error:
        checked_properties(shelled, "connection lab")
    assert "touch" not in str(error.value)
    assert checked_properties({"sasl.kerberos.principal": "kafka/host@REALM"}, "connection lab")


def test_properties_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# rights\n\nsasl.username = me\nsasl.password=a=b c\n")
    assert read_client_properties(path) == {"sasl.username": "me", "sasl.password": "a=b c"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sasl.username=me\ns3cr3t\n", "line 2 is not name=value"),
        (b"\n[api_auth]\njwt_s3cr3t = abc\n", "line 2 is not name=value"),
        (b"s3cr3tAsBase64==\n", "line 1: a property"),
        (b'{"jwt_s3cr3t": "x=y"}', "line 1: a property"),
        (b"sasl.username=me\ns3cr3t\xff=\n", "line 2 is not UTF-8 text"),
        (b"x" * (2 << 20), "more than 1,048,576 bytes"),
    ],
)
def test_a_file_of_anything_else_is_refused_by_its_line_and_nothing_of_it_is_shown(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "airflow.secrets"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        read_client_properties(path)
    shown = "".join(traceback.format_exception(error.value)).replace(str(path), "")
    assert "s3cr3t" not in shown
    with pytest.raises(ConfigurationError, match="No such file"):
        read_client_properties(tmp_path / "absent")


def test_passwords_are_in_no_representation() -> None:
    properties = {"sasl.password": "s3cr3t"}
    assert "s3cr3t" not in repr(TargetCluster(NOBODY, properties))
    assert "s3cr3t" not in repr(ClusterTarget(NOBODY, Path("map.jsonl"), properties=properties))
