from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered_storage.clock import wall_clock
from tiered_storage.errors import MetadataMissingError
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.settings.settings import Settings
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

SECRET = {
    "conn_type": "aws",
    "login": "an id",
    "password": "a secret",
    "extra": {"aws_session_token": "a token", "region_name": "eu-north-1", "endpoint_url": "https://s3.example.com"},
}
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"state.directory": tmp_path})


def define(monkeypatch: pytest.MonkeyPatch, **connection: object) -> RemoteStorageHook:
    monkeypatch.setenv("AIRFLOW_CONN_TRIAL", json.dumps(connection))
    return RemoteStorageHook("trial")


def test_the_connection_gives_endpoint_and_secrets(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    options = define(monkeypatch, **SECRET).options(settings)
    assert options == ObjectStoreOptions(
        endpoint="https://s3.example.com",
        region="eu-north-1",
        access_key_id="an id",
        secret_access_key="a secret",
        session_token="a token",
    )


def test_what_the_connection_leaves_out_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another id")
    options = define(monkeypatch, conn_type="aws", login="an id", password="a secret").options(settings)
    assert (options.region, options.access_key_id) == ("eu-central-1", "an id")
    assert options.endpoint is None


def test_the_settings_endpoint_goes_before_the_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"state.directory": tmp_path, "rsm.config.endpoint": "https://other.example.com"}
    )
    assert define(monkeypatch, **SECRET).options(settings).endpoint == "https://other.example.com"


def test_a_host_may_stand_for_the_endpoint(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    hook = define(monkeypatch, conn_type="aws", host="https://minio.example.com:9000")
    assert hook.options(settings).endpoint == "https://minio.example.com:9000"


def test_without_a_connection_the_environment_alone_decides(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an id")
    hook = RemoteStorageHook("there_is_none")
    assert hook.options(settings).access_key_id == "an id"


def test_the_hook_opens_the_store_that_the_settings_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

    config = tmp_path / "settings.yaml"
    config.write_text(f"state.directory: {tmp_path}\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(config))
    storage = RemoteStorageHook("there_is_none").get_conn()
    assert isinstance(storage, ObjectRemoteStorageManager)
    storage.close()


def test_the_metadata_hook_opens_the_metadata_store_that_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook

    config = tmp_path / "settings.yaml"
    config.write_text(f"state.directory: {tmp_path}\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(config))
    with pytest.raises(MetadataMissingError):
        RemoteLogMetadataHook().get_conn()
    open_metadata_store(f"sqlite:///{tmp_path}/remote_log_metadata.db", wall_clock).close()
    with RemoteLogMetadataHook().get_conn() as store:
        assert store.segments.list_partitions() == []


def test_a_session_token_of_the_environment_is_not_mixed_with_the_connections_key(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of the machine")
    options = define(monkeypatch, conn_type="aws", login="an id", password="a secret").options(settings)
    assert (options.access_key_id, options.secret_access_key, options.session_token) == ("an id", "a secret", None)
