from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.command_line import run


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bootstrap.servers": "127.0.0.1:1"}, "gateway.users.file and bootstrap.servers are both set"),
        ({"log.dirs": "logs"}, "chmod 600"),
    ],
    ids=["beside brokers", "a file that others can read"],
)
def test_users_that_cannot_log_in_are_refused(tmp_path: Path, settings: dict[str, str], reason: str) -> None:
    users, config = tmp_path / "users.yaml", tmp_path / "settings.yaml"
    users.write_text("alice: secret\n")
    users.chmod(0o644)
    given = {"gateway.users.file": str(users), "state.directory": str(tmp_path / "state")} | settings
    if "log.dirs" in settings:
        given["log.dirs"] = str(tmp_path / "logs")
    config.write_text(yaml.safe_dump(given))

    done = run("gateway", "--config", config)

    assert done.exit_code == 1
    assert reason in done.err
