"""Settings that are right: where values come from, what they become, and what is kept of them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.command_line import mentions
from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.properties.sources import environment_variable
from tiered_storage.settings.settings import Settings, load_settings

PROJECT = Path(__file__).parents[4]
Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(
        text: str, environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
    ) -> Settings:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return load_settings(path, environ=environ or {}, overrides=overrides)

    return load_text


def test_an_empty_file_gives_the_defaults_with_all_state_in_one_folder(load: Load, tmp_path: Path) -> None:
    settings = load("")
    state = tmp_path / ".state"
    assert settings.log_dirs == ()
    assert settings.cluster_id is None
    assert settings.log_end_is_stable is False
    assert settings.remote_log_storage_system_enable is True
    assert settings.state_directory == state
    assert settings.work_url == (state / "work").as_uri()
    assert settings.rsm_config_url == (state / "remote").as_uri()
    assert settings.rlmm_config_url.get_secret_value() == f"sqlite:///{state}/remote_log_metadata.db"
    assert settings.log_retention_ms == 7 * 24 * 3_600_000
    assert settings.log_retention_bytes == -1
    assert settings.log_local_retention_ms == settings.log_local_retention_bytes == -2
    assert settings.remote_log_index_chunk_bytes == 1 << 20
    assert settings.topics == {}
    assert settings.notices == ()


def test_the_environment_wins_over_the_file_and_parameters_over_both(load: Load) -> None:
    text = "lease.duration.ms: 1000\ncopy.window.bytes: 65536\nindex.interval.bytes: 1\n"
    environ = {"TIERED_STORAGE_COPY_WINDOW_BYTES": "70000", "TIERED_STORAGE_INDEX_INTERVAL_BYTES": "2"}
    settings = load(text, environ, {"index.interval.bytes": 3, "cluster.id": None})
    assert (settings.lease_duration_ms, settings.copy_window_bytes, settings.index_interval_bytes) == (1000, 70_000, 3)
    assert settings.cluster_id is None


def test_an_empty_variable_counts_as_not_set(load: Load) -> None:
    assert load("index.interval.bytes: 7", {"TIERED_STORAGE_INDEX_INTERVAL_BYTES": ""}).index_interval_bytes == 7


def test_a_nearer_source_wins_under_whichever_name_it_gives_a_value(load: Load) -> None:
    settings = load("log.retention.ms: 1000", {"TIERED_STORAGE_LOG_RETENTION_HOURS": "2"})
    assert settings.log_retention_ms == 2 * 3_600_000
    assert settings.notices == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.dirs: data", ["data"]),
        ("log.dirs: a, b", ["a", "b"]),
        ("log.dirs: [a, 'with, comma']", ["a", "with, comma"]),
        ("log.dirs:\n- a\n- /b", ["a", "/b"]),
        ("log.dirs:", []),
    ],
)
def test_log_dirs_are_a_list_or_a_text_with_commas(load: Load, tmp_path: Path, text: str, expected: list[str]) -> None:
    assert load(text).log_dirs == tuple(tmp_path / name for name in expected)


@pytest.mark.parametrize(
    "text",
    [
        "broker.log.dirs: 1=a,b;2=/c",
        "broker.log.dirs: ' 1 = a, b ; 2=/c; '",
        "broker.log.dirs: {1: [a, b], 2: /c}",
        "broker.log.dirs:\n  1: a,b\n  2:\n  - /c",
    ],
)
def test_log_dirs_of_brokers_are_a_mapping_or_a_text(load: Load, tmp_path: Path, text: str) -> None:
    settings = load(text)
    assert settings.broker_log_dirs == {1: (tmp_path / "a", tmp_path / "b"), 2: (Path("/c"),)}
    assert load("", overrides={"broker.log.dirs": settings.dump()["broker.log.dirs"]}).broker_log_dirs == (
        settings.broker_log_dirs
    )


def test_brokers_may_have_the_same_paths_on_their_hosts(load: Load) -> None:
    assert load("broker.log.dirs: 1=/data;2=/data").broker_log_dirs == {1: (Path("/data"),), 2: (Path("/data"),)}


def test_connections_are_a_list_or_a_text_with_commas(load: Load) -> None:
    for text in ("[kafka_lab, kafka.2]", "kafka_lab, kafka.2,", "[kafka_lab, kafka.2, kafka_lab]"):
        assert load(f"restore.connections: {text}").restore_connections == ("kafka_lab", "kafka.2")
    with pytest.raises(ConfigurationError, match=r"restore\.connections is .*: .*letters"):
        load("restore.connections: http://host:9092")


def test_relative_paths_begin_at_the_folder_of_the_file_and_at_the_project_for_one_in_include(tmp_path: Path) -> None:
    for folder, root in ((tmp_path / "include", tmp_path), (tmp_path / "etc", tmp_path / "etc")):
        folder.mkdir()
        (folder / "tiered_storage.yaml").write_text(
            "log.dirs: data\nstate.directory: state\nrsm.config.url: remote\nrlmm.config.url: sqlite:///db/m.db\n"
            "restore.directory: restored\n"
        )
        settings = load_settings(folder / "tiered_storage.yaml", environ={}, overrides={"work.url": "work"})
        assert settings.log_dirs == (root / "data",)
        assert settings.state_directory == root / "state"
        assert (settings.restore_directory, settings.base) == (root / "restored", root)
        assert settings.rsm_config_url == (root / "remote").as_uri()
        assert (settings.work_url, settings.work_folder) == ((root / "work").as_uri(), root / "work")
        assert settings.rlmm_config_url.get_secret_value() == f"sqlite:///{root}/db/m.db"


def test_a_tilde_is_the_home_folder(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load("log.dirs: ~/kafka").log_dirs == (tmp_path / "home" / "kafka",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("file:///some/folder", "file:///some/folder"),
        ("/some/fol der", "file:///some/fol%20der"),
        ("gs://bucket", "gs://bucket"),
    ],
)
def test_a_store_is_named_by_url_or_folder(load: Load, given: str, expected: str) -> None:
    assert load(f"rsm.config.url: {given}").rsm_config_url == expected


def test_yaml_scalars_are_read_by_the_settings_type(load: Load) -> None:
    settings = load("cluster.id: 0123\nlog.end.is.stable: yes\nrsm.config.region:\nlog.retention.ms: 1_000\n")
    assert settings.cluster_id == "0123"
    assert settings.log_end_is_stable is True
    assert settings.rsm_config_region is None
    assert settings.log_retention_ms == 1000


def test_the_default_file_is_read_from_include_and_a_variable_names_another(tmp_path: Path) -> None:
    assert load_settings(environ={}).config_path == PROJECT / "include" / "tiered_storage.yaml"
    other = tmp_path / "other.yaml"
    other.write_text("cluster.id: other")
    settings = load_settings(environ={"TIERED_STORAGE_CONFIG": str(other)})
    assert (settings.cluster_id, settings.config_path) == ("other", other)


def test_without_an_environment_the_process_has_it(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.yaml").write_text("")
    monkeypatch.setenv("TIERED_STORAGE_CLUSTER_ID", "from-the-process")
    assert load_settings(tmp_path / "settings.yaml").cluster_id == "from-the-process"


def test_the_file_that_the_project_ships_is_valid_and_changes_no_default(load: Load) -> None:
    shipped = load_settings(PROJECT / "include" / "tiered_storage.yaml", environ={})
    bare = load("", overrides={"state.directory": str(shipped.state_directory)})
    assert shipped.dump() == bare.dump()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("log.retention.minutes: 2", 120_000),
        ("log.retention.hours: 1", 3_600_000),
        ("remote.log.retention.minutes: 3", 180_000),
        ("log.retention.hours: -1", -1),
    ],
)
def test_older_names_of_retention_are_converted_to_ms(load: Load, text: str, expected_ms: int) -> None:
    settings = load(text)
    assert settings.log_retention_ms == expected_ms
    assert settings.notices == ()


@pytest.mark.parametrize("name", ["rsm.config.url", "work.url", "export.url"])
def test_gs_is_untested_and_says_so(load: Load, name: str) -> None:
    [notice] = load(f"{name}: gs://bucket/root").notices
    assert mentions(notice, "gs://bucket/root", "untested", "s3://")


def test_the_newer_of_two_generations_wins_and_reports_it(load: Load, tmp_path: Path) -> None:
    settings = load(
        "remote.log.retention.minutes: 1\nlog.retention.hours: 2\nlog.retention.minutes: 3\n"
        "remote.log.retention.bytes: 5\nlog.retention.bytes: 6\nremote.log.storage.enable: false\n"
    )
    assert settings.log_retention_ms == 180_000
    assert settings.log_retention_bytes == 6
    assert settings.remote_log_storage_system_enable is False
    file = tmp_path / "settings.yaml"
    expected = [
        (2, "log.retention.hours", "log.retention.minutes", 3),
        (1, "remote.log.retention.minutes", "log.retention.minutes", 3),
        (4, "remote.log.retention.bytes", "log.retention.bytes", 5),
    ]
    for notice, (line, unused, used, its_line) in zip(settings.notices, expected, strict=True):
        assert notice.startswith(f"{file}, line {line}: {unused} is not used: {used} ")
        assert f"({file}, line {its_line})" in notice


def test_settings_are_frozen(load: Load) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load("").cluster_id = "other"


def test_dumped_settings_load_to_the_same_settings(load: Load, tmp_path: Path) -> None:
    settings = load(
        "log.dirs: [a, 'b, c']\ncluster.id: c\nrsm.config.url: s3://bucket\nrlmm.config.url: sqlite:///other.db\n"
        "topics: {orders: {remote.storage.enable: true, local.retention.ms: 5}, payments: {}}\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, text in (("a.json", json.dumps(settings.dump())), ("a.yaml", yaml.safe_dump(settings.dump()))):
        (elsewhere / name).write_text(text)
        again = load_settings(elsewhere / name, environ={})
        assert again.dump() == settings.dump()
        assert again.topics == settings.topics
        assert again.rlmm_config_url == settings.rlmm_config_url


@hypothesis_settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=4))
def test_a_password_of_the_metadata_store_shows_only_when_asked_for(password: str) -> None:
    secret = f"<{password}>"
    url = f"postgresql://kafka:{quote(secret, safe='')}@host/db"
    for given_url in (url, f"postgresql://kafka@host/db?sslmode=require&password={quote(secret, safe='')}"):
        settings = Settings.model_validate({"rlmm.config.url": given_url})
        assert settings.rlmm_config_url.get_secret_value() == given_url
        shown = f"{settings} {settings!r} {settings.rlmm_config_url} {settings.dump()} {settings.model_dump_json()}"
        assert quote(secret, safe="") not in shown
        assert "kafka" in str(settings.rlmm_config_url)
        assert "host/db" in str(settings.rlmm_config_url)


def test_dumped_settings_have_no_password_of_the_metadata_store(load: Load) -> None:
    url = "postgresql+psycopg://kafka:hush@host:5432/db?sslmode=require&password=hush"
    settings = load("", environ={"TIERED_STORAGE_RLMM_CONFIG_URL": url})
    assert settings.dump()["rlmm.config.url"] == "postgresql+psycopg://kafka@host:5432/db?sslmode=require"
    assert str(settings.rlmm_config_url) == "postgresql+psycopg://kafka:***@host:5432/db?sslmode=require&password=***"


def test_every_name_has_a_variable_of_its_own() -> None:
    names = Settings.known_names()
    assert len({environment_variable(name) for name in names}) == len(names)


def test_every_setting_is_described() -> None:
    for declaration in Settings.declarations().values():
        assert declaration.description, declaration.name
        assert declaration.allowed, declaration.name


def test_the_class_that_is_named_by_default_exists(load: Load) -> None:
    module, _, class_name = load("").remote_log_storage_manager_class_name.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), class_name), type)


def test_importing_settings_stays_light() -> None:
    heavy = ("numba", "numpy", "pyarrow", "sqlalchemy", "obstore", "awscrt", "airflow", "pyspark")
    code = (
        "import sys, tiered_storage.settings.settings, tiered_storage.remote_log.tiering_policy\n"
        f"print([module for module in {heavy} if module in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
