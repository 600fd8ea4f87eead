from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.command_line import run
from tiered_storage.doctor import source_cluster


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
