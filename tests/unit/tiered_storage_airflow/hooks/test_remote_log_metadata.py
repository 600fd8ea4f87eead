from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from airflow.sdk.exceptions import AirflowFailException

from servers.postgres import PASSWORD, USER, postgres_url, the_server
from support.remote_logs import a_remote_log, begin
from tiered_storage.errors import ConfigurationError, RemoteMetadataError
from tiered_storage.settings.settings import Settings
from tiered_storage_airflow.hooks.remote_log import RemoteLogHook
from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The name of an empty database."""
    return urlsplit(postgres_url(tmp_path)).path.strip("/")


def define(monkeypatch: pytest.MonkeyPatch, **connection: object) -> RemoteLogMetadataHook:
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_LOG_METADATA_DEFAULT", json.dumps({"conn_type": "postgres", **connection}))
    return RemoteLogMetadataHook()


def settings_at(url: str, tmp_path: Path) -> Settings:
    return Settings.model_validate({"state.directory": tmp_path, "rlmm.config.url": url})


@pytest.mark.parametrize(
    "url",
    ["postgresql://remote_log@127.0.0.1:{port}/{database}?application_name=me", "postgresql:///?application_name=me"],
)
def test_the_connection_completes_the_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str, url: str
) -> None:
    port = the_server().port
    hook = define(monkeypatch, login=USER, password=PASSWORD, host="127.0.0.1", port=port, schema=database)

    settings = hook.with_login(settings_at(url.format(port=port, database=database), tmp_path))

    found = urlsplit(settings.rlmm_config_url.get_secret_value())
    assert (found.username, found.hostname, found.port) == (USER, "127.0.0.1", port)
    assert (found.path, found.query) == (f"/{database}", "application_name=me")
    assert PASSWORD not in f"{settings!r}{settings.dump()}{settings.rlmm_config_url}"


def test_a_remote_log_is_opened_with_the_password_and_never_writes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str
) -> None:
    files = a_remote_log(tmp_path / "live")
    files.properties["rlmm.config.url"] = the_server().url(database, password=None)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(files.config))
    with pytest.raises(RemoteMetadataError, match="PGPASSWORD"):
        RemoteLogHook().get_conn(create=True)
    define(monkeypatch, login=USER, password=PASSWORD)

    with RemoteLogHook().get_conn(create=True) as remote_log:
        remote_log.write_copy_job("runs/test/1", begin(remote_log))
        shown = f"{remote_log!r}{remote_log.context.settings.dump()}"
    with RemoteLogMetadataHook().get_conn() as store:
        assert len(store.segments.list_partitions()) == 1

    secret = PASSWORD.encode()
    written = [path for path in files.root.rglob("*") if path.is_file()]
    assert any("runs" in path.parts for path in written)
    assert not [path for path in written if secret in path.read_bytes()]
    assert PASSWORD not in shown


@pytest.mark.parametrize("other", [{"host": "other.example.com"}, {"schema": "other"}, {"login": "other"}, {"port": 1}])
def test_a_password_of_another_server_or_database_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, object]
) -> None:
    hook = define(monkeypatch, password="hush", **other)
    with pytest.raises(ConfigurationError, match=r"other|port") as refused:
        hook.with_login(settings_at("postgresql://me@db.example.com:5432/metadata", tmp_path))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("other", [{"host": "db1"}, {"port": 5432}])
def test_a_url_of_several_hosts_takes_no_other_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, object]
) -> None:
    url = "postgresql://me@/metadata?host=db1:5432&host=db2:5432"
    completed = define(monkeypatch, password="hush").with_login(settings_at(url, tmp_path))
    assert "host=db1" in completed.rlmm_config_url.get_secret_value()

    hook = define(monkeypatch, password="hush", **other)
    with pytest.raises(ConfigurationError, match="out of one"):
        hook.with_login(settings_at(url, tmp_path))


def test_a_mistyped_connection_is_named(tmp_path: Path) -> None:
    settings = settings_at("postgresql://me@db.example.com/metadata", tmp_path)
    assert RemoteLogMetadataHook().with_login(settings) is settings
    with pytest.raises(AirflowFailException, match="mistyped"):
        RemoteLogMetadataHook("mistyped").with_login(settings)


def test_sqlite_needs_no_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings.model_validate({"state.directory": tmp_path})
    assert define(monkeypatch, password="hush").with_login(settings) is settings
