"""A remote log whose store, work area and exports are in Azure, by the commands of docs/stores.md."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from integration.test_remote_log_on_hdfs import commands
from servers.azurite import ACCOUNT, CONTAINER, KEY, azurite_server
from support.command_line import run
from support.remote_logs import a_remote_log


def test_the_commands_of_the_page_copy_and_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with azurite_server(tmp_path / "azurite") as azure:
        url = f"az://{CONTAINER}/{uuid4().hex}"
        places = {"rsm_config_url": f"{url}/remote", "work_url": f"{url}/work", "export_url": f"{url}/export"}
        reached = {"rsm_config_endpoint": azure.url, "rsm_config_allow_http": True}
        site = a_remote_log(tmp_path / "site", None, topics={}, **places, **reached)
        results = {}
        for arguments in commands():
            result = run(*arguments, "--config", site.config)
            assert result.exit_code == 0, (arguments, result.out, result.err)
            results[" ".join(arguments)] = result.out
    assert "Copied: 3 segments" in results["copy"]
    assert "0 anomalies" in results["audit --deep"]
