"""The commands of docs/stores.md, on the servers of Azure and S3; test_remote_log_on_hdfs.py runs them on HDFS."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import trustme
import yaml

from servers.azurite import ACCOUNT, CONTAINER, KEY, azurite_server
from servers.s3_proxy import Asked, without_conditional_writes
from support.command_line import run
from support.local_logs import read_all
from support.object_stores import OWN, S3Endpoint
from support.remote_logs import LOG_CONFIG, NOW, RemoteLogFiles, a_remote_log, records
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.storage.clients.opening import open_object_client

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "stores.md"


def blocks(language: str, page: Path = PAGE) -> list[str]:
    """Return the lines of the page's blocks in `language`."""
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line.strip() for name, block in fenced if name == language for line in block.splitlines()]


def commands() -> list[list[str]]:
    """Return the arguments of each command of the page; they are the same for every store."""
    words = [shlex.split(line, comments=True) for line in blocks("sh")]
    assert all(each[0] == ".venv/bin/tiered-storage" for each in words)
    return [each[1:] for each in words]


def assert_all_succeed(site: RemoteLogFiles) -> None:
    """Run the commands of the page on a new remote log."""
    results = {" ".join(arguments): done(site, *arguments) for arguments in commands()}
    assert "Copied: 3 segments" in results["copy"]
    assert "0 anomalies" in results["audit --deep"]


def assert_a_life_passes(site: RemoteLogFiles, restored: Path) -> None:
    """Run the commands of the page on a new remote log; then trim, read, expire, copy again, audit, and restore it."""
    assert_all_succeed(site)
    assert commits_in(site) == 3
    assert not [name for name in names_in(site) if name.startswith("doctor")]

    done(site, "topics", "allow-deletion", "orders")
    done(site, "topics", "set", "orders", "local.retention.ms=1", "retention.ms=-1")
    done(site, "retain")
    assert site.local_starts() == [30]
    read = done(site, "read", "orders", 0, "--max-records", 5, "--json")
    assert [json.loads(line)["offset"] for line in read.splitlines()] == [0, 1, 2, 3, 4]

    done(site, "delete-records", "orders", 0, "--before", 10)
    done(site, "expire")
    assert commits_in(site) == 2
    site.append(2)
    assert "Copied: 1 segment" in done(site, "copy")
    assert commits_in(site) == 3
    assert "0 anomalies" in done(site, "audit", "--deep")

    done(site, "restore", "orders", "--to-directory", restored, "--validation", "records")
    with LocalLog.open(restored / "orders-0", LOG_CONFIG, clock=lambda: NOW) as log:
        assert read_all(log) == records(10, 40)


def done(site: RemoteLogFiles, *arguments: object) -> str:
    """Run a command, which must succeed; return what it wrote."""
    result = run(*arguments, "--config", site.config)
    assert result.exit_code == 0, (arguments, result.out, result.err)
    return result.out


def names_in(site: RemoteLogFiles) -> list[str]:
    """Return the names of the objects in the site's store."""
    settings = site.settings()
    with closing(open_object_client(settings.rsm_config_url, store_options(settings))) as client:
        return [found.name for found in client.list()]


def commits_in(site: RemoteLogFiles) -> int:
    return len([name for name in names_in(site) if name.endswith(".commit")])


def a_site(directory: Path, url: str, **reached: object) -> RemoteLogFiles:
    """Make a remote log without topics whose store, work area and exports are below `url`."""
    places = {"rsm_config_url": f"{url}/remote", "work_url": f"{url}/work", "export_url": f"{url}/export"}
    return a_remote_log(directory, None, topics={}, **places, **reached)


def test_a_life_passes_on_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with azurite_server(tmp_path / "azurite") as azure:
        reached = {"rsm_config_endpoint": azure.url, "rsm_config_allow_http": True}
        site = a_site(tmp_path / "site", f"az://{CONTAINER}/{uuid4().hex}", **reached)
        assert_a_life_passes(site, tmp_path / "restored")


def with_keys_of(s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_endpoint.secret_key)


def test_they_succeed_on_s3(s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_keys_of(s3_endpoint, monkeypatch)
    reached = {
        "rsm_config_endpoint": s3_endpoint.url,
        "rsm_config_region": s3_endpoint.region,
        "rsm_config_allow_http": True,
    }
    assert_all_succeed(a_site(tmp_path / "site", f"s3://{s3_endpoint.bucket}/{uuid4().hex}", **reached))


@pytest.mark.parametrize("s3_endpoint", ["localbucket"], indirect=True)
def test_a_life_passes_with_the_settings_for_google(
    s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's settings, at the address of a server that knows no conditional writes."""
    with_keys_of(s3_endpoint, monkeypatch)
    section = PAGE.read_text("utf-8").partition("\n## Google Cloud Storage\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"^```yaml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    recipe = {name.replace(".", "_"): value for name, value in yaml.safe_load(block).items()}
    assert recipe.pop("rsm_config_url").startswith("s3://")
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    seen: list[Asked] = []
    with without_conditional_writes(s3_endpoint, tls, seen.append) as google:
        reached = {**recipe, "rsm_config_endpoint": google.url, "rsm_config_ca_bundle": str(tmp_path / "authority.pem")}
        site = a_site(tmp_path / "site", f"s3://{google.bucket}/{uuid4().hex}", **reached)
        assert_a_life_passes(site, tmp_path / "restored")
    assert not [asked for asked in seen if "if-none-match" in asked.headers]
    assert all("/auto/s3/aws4_request" in asked.headers["authorization"] for asked in seen)


def assert_the_command_runs(command: str, choice: str, suites: Sequence[str], kind: str) -> None:
    """Run the tests of `command` that pytest's `choice` (-k) leaves, as a shell does: some of each suite, of `kind`."""
    ran = subprocess.run(
        ["bash", "-c", f"{command} -k '{choice}' -rA"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    for suite in suites:
        passed = rf"^PASSED tests/contract/(?:metadata/)?test_{suite}_contract\.py::\S+\[.*{kind}.*\]$"
        assert re.search(passed, ran.stdout, re.MULTILINE), suite


def test_the_pages_command_runs_the_suites_on_a_custom_store() -> None:
    [command] = blocks("")
    # The cases of the other stores run elsewhere.
    assert_the_command_runs(command, "own] or own-", ("object_client", "remote_storage", "encoded_storage"), OWN)


def test_the_metadata_pages_command_runs_the_suites_on_a_custom_store() -> None:
    [command] = blocks("", PAGE.with_name("metadata.md"))
    suites = ("segment_steps", "leases", "topics", "safety", "partition_state")
    assert_the_command_runs(command, "memory", suites, "memory")
