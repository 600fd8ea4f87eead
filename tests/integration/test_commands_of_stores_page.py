"""The commands of docs/stores.md, on the servers of Azure and S3; test_remote_log_on_hdfs.py runs them on HDFS."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from servers.azurite import ACCOUNT, CONTAINER, KEY, azurite_server
from support.command_line import run
from support.object_stores import OWN, S3Endpoint
from support.remote_logs import a_remote_log

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "stores.md"


def blocks(language: str) -> list[str]:
    """Return the lines of the page's blocks in `language`."""
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line.strip() for name, block in fenced if name == language for line in block.splitlines()]


def commands() -> list[list[str]]:
    """Return the arguments of each command of the page; they are the same for every store."""
    words = [shlex.split(line, comments=True) for line in blocks("sh")]
    assert all(each[0] == ".venv/bin/tiered-storage" for each in words)
    return [each[1:] for each in words]


def assert_all_succeed(directory: Path, url: str, **reached: object) -> None:
    """Run the commands of the page on a new remote log in the store at `url`."""
    places = {"rsm_config_url": f"{url}/remote", "work_url": f"{url}/work", "export_url": f"{url}/export"}
    site = a_remote_log(directory, None, topics={}, **places, **reached)
    results = {}
    for arguments in commands():
        result = run(*arguments, "--config", site.config)
        assert result.exit_code == 0, (arguments, result.out, result.err)
        results[" ".join(arguments)] = result.out
    assert "Copied: 3 segments" in results["copy"]
    assert "0 anomalies" in results["audit --deep"]


def test_they_succeed_on_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with azurite_server(tmp_path / "azurite") as azure:
        url = f"az://{CONTAINER}/{uuid4().hex}"
        assert_all_succeed(tmp_path / "site", url, rsm_config_endpoint=azure.url, rsm_config_allow_http=True)


def test_they_succeed_on_s3(s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_endpoint.secret_key)
    reached = {
        "rsm_config_endpoint": s3_endpoint.url,
        "rsm_config_region": s3_endpoint.region,
        "rsm_config_allow_http": True,
    }
    assert_all_succeed(tmp_path / "site", f"s3://{s3_endpoint.bucket}/{uuid4().hex}", **reached)


def test_the_command_of_the_page_runs_the_suites_on_a_store_of_ones_own() -> None:
    [command] = blocks("")
    # As a shell expands it; the cases of the other stores run elsewhere.
    ran = subprocess.run(
        ["bash", "-c", f"{command} -k 'own] or own-' -rA"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    for suite in ("object_client", "remote_storage", "encoded_storage"):
        own = rf"^PASSED tests/contract/test_{suite}_contract\.py::\S+\[.*{OWN}.*\]$"
        assert re.search(own, ran.stdout, re.MULTILINE), suite
