"""The recipes of CONTRIBUTING.md, carried out: each file that they name is the last thing an addition needs."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import recipes.command
from recipes import source
from support.object_stores import OWN_STORE
from support.remote_logs import ENABLED, a_copied_remote_log, a_remote_log, assert_clean, copy, offsets_read
from tiered_storage.cli import main
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.opening import SEGMENT_SOURCES
from tiered_storage.remote_log.storage.clients.opening import OBJECT_CLIENTS, open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

PROJECT = Path(__file__).parents[2]


def test_a_store_is_a_class_and_the_scheme_of_its_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = runpy.run_path(str(OWN_STORE))["SqliteObjects"]
    monkeypatch.setitem(OBJECT_CLIENTS, "sqlite", lambda url, _options, _reserve: own(url, 30_000))
    files = a_remote_log(tmp_path, {("orders", 0): 3}, rsm_config_url=f"sqlite://{tmp_path}/objects.db")

    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 3
        for segment in files.local_segments()[:3]:
            segment.log_path.unlink()
        assert offsets_read(remote_log, 0) == list(range(35))
        assert_clean(remote_log)
    assert files.objects() == []
    with closing(open_object_client(f"sqlite://{tmp_path}/objects.db", ObjectStoreOptions())) as client:
        assert len([found for found in client.list() if found.name.endswith(".log")]) == 3


def test_its_example_has_at_most_60_lines() -> None:
    lines = [line for line in OWN_STORE.read_text("utf-8").splitlines() if line.strip()]

    assert len(lines) <= 60


def test_logs_from_elsewhere_are_one_source_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        archive.add(files.log_directory, ".")
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []
    logs = source.archived_logs(tmp_path / "logs.tar", tmp_path / "scratch")
    monkeypatch.setitem(SEGMENT_SOURCES, source.SCHEME, logs)

    with files.open() as remote_log:
        assert [one.location for one in remote_log.plan_copy().segments] == [
            f"archive://orders-0/{offset:020}.log" for offset in (0, 10, 20)
        ]
        assert len(copy(remote_log).committed) == 3
        assert offsets_read(remote_log, 0) == list(range(35))
        _, [kept] = remote_log.deletions.plan_local_retention(EVERYTHING, remote_log.context.clock())
        assert "never trimmed" in kept.message
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_command_is_a_function_and_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiered_storage.cli.example", recipes.command)
    monkeypatch.setitem(main.COMMANDS, "example", {"count-segments": "Count the remote segments of each partition."})
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3})

    listed = CliRunner().invoke(main.app, ["--help"])
    counted = CliRunner().invoke(main.app, ["count-segments", "--json", "--config", str(files.config)])

    assert "count-segments" in listed.output
    assert json.loads(counted.output)["rows"] == [{"partition": "orders-0", "segments": 3}]


def test_every_file_that_the_recipes_name_is_there() -> None:
    named = set(re.findall(r"`((?:include|plugins|tests|dags|docs)/[^`]*)`", (PROJECT / "CONTRIBUTING.md").read_text()))

    assert len(named) > 15
    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []
