"""Metadata in a class of the user's own, loaded by its name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recipes.metadata import MemoryMetadata
from support.command_line import CommandResult, run, run_on
from support.examinations import examined
from support.remote_logs import RemoteLogFiles, a_remote_log, assert_clean, copy
from tiered_storage.errors import ConfigurationError, MetadataMissingError
from tiered_storage.remote_log.context import stop_by_metadata_alone
from tiered_storage.remote_log.metadata.metadata_store import MetadataStoreFactory
from tiered_storage.settings.settings import load_settings

SITE = """
from recipes.metadata import MemoryMetadata

OPENED = 0

class SiteMetadata(MemoryMetadata):
    @staticmethod
    def open(*args, **options):
        global OPENED
        OPENED += 1
        return MemoryMetadata.open(*args, **options)
"""

OWN = """
from recipes.metadata import MemoryMetadata

class Half:
    @staticmethod
    def open(url, clock, *, busy_timeout_ms, create, configs): ...
    def close(self): ...

class Empty(MemoryMetadata):
    @staticmethod
    def open(url, clock, *, busy_timeout_ms, create, configs):
        return None
"""


def in_memory(root: Path) -> RemoteLogFiles:
    return a_remote_log(
        root,
        remote_log_metadata_manager_class_name="recipes.metadata.MemoryMetadata",
        rlmm_config_url="memory://here",
        rlmm_config_space=str(root),
    )


def is_there(root: Path) -> bool:
    return MemoryMetadata.is_there("memory://here", {"space": str(root)})


def test_a_custom_metadata_store_keeps_the_metadata(tmp_path: Path) -> None:
    files = in_memory(tmp_path)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 3
    with files.open() as remote_log:
        assert_clean(remote_log)
    assert is_there(tmp_path)
    stop = stop_by_metadata_alone(load_settings(files.config), "a reason", "me", files.clock)
    assert stop is not None
    with files.open() as remote_log:
        assert remote_log.context.safety.stopped() == stop


def test_a_class_that_settings_alone_name_keeps_the_metadata_through_copy_read_expiry_and_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is found by the class path, and its options by the prefix."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "site_metadata", raising=False)
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "site_metadata.py").write_text(SITE)
    files = a_remote_log(tmp_path)
    files.properties |= {
        "remote.log.metadata.manager.class.name": "site_metadata.SiteMetadata",
        "remote.log.metadata.manager.class.path": str(tmp_path / "classes"),
        "remote.log.metadata.manager.impl.prefix": "site.",
        "rlmm.config.url": "memory://here",
        "site.space": str(tmp_path),
    }

    def done(*command: object) -> CommandResult:
        result = run_on(files, *command)
        assert result.exit_code == 0, (command, result.out, result.err)
        return result

    assert "Copied: 3 segments" in done("copy").out
    done("topics", "allow-deletion", "orders")
    done("topics", "set", "orders", "local.retention.ms=1")
    done("retain")
    assert files.local_starts() == [30]
    read = done("read", "orders", 0, "--max-records", 12, "--json").out
    assert [json.loads(line)["offset"] for line in read.splitlines()] == [*range(12)]
    done("delete-records", "orders", 0, "--before", 10)
    done("expire")
    assert [row["start_offset"] for row in done("segments", "--json").rows] == [10, 20]
    assert "0 anomalies" in done("audit", "--deep").out
    assert is_there(tmp_path)
    assert sys.modules["site_metadata"].OPENED >= 9


def test_a_plan_creates_no_metadata(tmp_path: Path) -> None:
    files = in_memory(tmp_path)

    looked = run("plan", "--config", files.config)

    assert looked.exit_code == 0, looked.err
    assert not is_there(tmp_path)


def test_doctor_looks_at_it_and_creates_nothing(tmp_path: Path) -> None:
    files = in_memory(tmp_path)
    assert "does not exist yet" in " ".join(examined(files).notes("metadata"))
    assert not is_there(tmp_path)

    with files.open() as remote_log:
        copy(remote_log)

    found = examined(files)
    assert "recipes.metadata.MemoryMetadata" in found.ok("metadata")[0]
    assert found.ok("pair") != []
    assert any("options space, url" in message for message in found.ok("settings"))


def test_doctor_looks_for_no_file_of_it(tmp_path: Path) -> None:
    assert examined(in_memory(tmp_path)).wrong("rights") == []


def test_without_more_methods_it_is_at_its_url_and_in_no_file() -> None:
    factory = MetadataStoreFactory("recipes.metadata.MemoryMetadata", MemoryMetadata)

    assert factory.location("memory://ada:hush@here/a?password=hush", {}) == "memory://ada@here/a"
    assert factory.local_file("memory://here", {}) is None


def test_its_own_methods_tell_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryMetadata, "location", lambda _, configs: f"memory {configs['space']}", raising=False)
    files = in_memory(tmp_path)
    with files.open() as remote_log:
        copy(remote_log)
    files.properties["rlmm.config.space"] = str(tmp_path / "other")
    with pytest.raises(MetadataMissingError, match=f"^memory {tmp_path}/other: there are no metadata"):
        files.open()

    inside = files.log_directory / "metadata"
    monkeypatch.setattr(MemoryMetadata, "local_file", lambda *_: inside, raising=False)
    with pytest.raises(ConfigurationError, match=rf"rlmm\.config\.url is {inside}, inside"):
        files.open()


def test_only_sql_databases_are_written_as_a_whole(tmp_path: Path) -> None:
    files = in_memory(tmp_path)
    with files.open() as remote_log:
        copy(remote_log)
    backup, rebuilt = tmp_path / "backup.db", tmp_path / "rebuilt.db"
    assert run("metadata", "backup", backup, "--config", files.config).exit_code == 0

    for command in (
        ["metadata", "restore", backup],
        ["metadata", "move", f"sqlite:///{tmp_path}/other.db"],
        ["rebuild-metadata"],
    ):
        refused = run(*command, "--config", files.config)
        assert refused.exit_code == 1, refused.out
        assert "remote.log.metadata.manager.class.name" in refused.err
    done = run("rebuild-metadata", "--into", rebuilt, "--yes", "--config", files.config)
    assert done.exit_code == 0, done.err
    assert rebuilt.is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Half", "is not a MetadataStore: it lacks is_there, work_area_key, .*copy_to"),
        ("Empty", "open returns lacks segments, leases"),
        ("MemoryMetadata", "KeyError: 'space'"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "own_metadata.py").write_text(OWN)
    files = a_remote_log(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"remote\.log\.metadata\.manager\.class\.name .*{reason}"):
        MetadataStoreFactory.load(f"own_metadata.{name}", (tmp_path,)).open(
            "memory://here", files.clock, busy_timeout_ms=0, create=True, configs={}
        )
