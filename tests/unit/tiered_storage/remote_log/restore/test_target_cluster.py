from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError, TargetClusterError
from tiered_storage.remote_log.restore import target_cluster
from tiered_storage.remote_log.restore.target_cluster import TargetCluster, read_client_properties

NOBODY = "127.0.0.1:1"


def test_a_cluster_that_does_not_answer_is_told_of_in_one_message_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target_cluster, "ANSWER_SECONDS", 1)
    with pytest.raises(TargetClusterError, match=r"127\.0\.0\.1:1: topic orders: ") as error:
        TargetCluster(NOBODY, {}).topic("orders")
    assert error.value.retriable
    assert "Connection refused" in str(error.value)
    assert "is the address right" in str(error.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("properties", [{"no.such.property": "1"}, {"security.protocol": "none"}])
def test_properties_that_the_client_does_not_take_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="the client refuses its properties: "):
        TargetCluster(NOBODY, properties).topic("orders")
    with pytest.raises(ConfigurationError, match="the client refuses its properties: "):
        TargetCluster(NOBODY, properties).producer("lz4")


def test_properties_are_read_from_a_file_and_no_value_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# rights\n\nsasl.username = me\nsasl.password=a=b c\n")
    assert read_client_properties(path) == {"sasl.username": "me", "sasl.password": "a=b c"}
    path.write_text("sasl.username=me\nmy secret\n")
    with pytest.raises(ConfigurationError, match="line 2 is not name=value") as error:
        read_client_properties(path)
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_client_properties(tmp_path / "absent")
