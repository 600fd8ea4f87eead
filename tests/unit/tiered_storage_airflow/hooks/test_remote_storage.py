from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import boto3
import pytest
from airflow.sdk.exceptions import AirflowFailException

from servers.aws_roles import Account, Role, role_arn, running_account
from servers.s3_proxy import Asked, Refusal
from support.key_rings import ring_file
from support.object_stores import moto_server
from support.remote_segments import copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.clock import wall_clock
from tiered_storage.errors import MetadataMissingError
from tiered_storage.remote_log.context import open_storage
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.transforms.encoding import Encoding
from tiered_storage.settings.settings import Settings, load_settings
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


@dataclass
class KmsAccount(Account):
    """Notes what KMS is asked under an identity that it admits."""

    asked_of_kms: list[str] = field(default_factory=list)

    def look(self, asked: Asked) -> Refusal | None:
        refusal = super().look(asked)
        target = asked.headers.get("x-amz-target")
        if refusal is None and target is not None:
            self.asked_of_kms.append(target)
        return refusal


def test_kms_is_asked_with_the_role_and_the_keys_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server knows only the role of the connection, and only its keys may assume that."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-machine")
    roles = {"tiering": Role("of-the-connection", external_id="ours")}
    account = KmsAccount(roles, admitted="tiering")
    with moto_server() as aws, running_account(aws, account):
        kms = boto3.session.Session("any", "any", region_name=aws.region).client("kms", endpoint_url=aws.url)
        key = {"aws.kms.key.id": kms.create_key()["KeyMetadata"]["Arn"], "aws.kms.endpoint": account.s3.url}
        given = {
            "rsm.config.url": f"s3://{aws.bucket}/by-connection",
            "rsm.config.allow.http": True,
            "rsm.config.encryption.key.ring.file": str(ring_file(tmp_path, {"cloud": key})),
            "rsm.config.encryption.key.pair.id": "cloud",
        }
        hook = define(
            monkeypatch,
            conn_type="aws",
            login="of-the-connection",
            password="a secret",
            extra={
                "region_name": aws.region,
                "endpoint_url": account.s3.url,
                "service_config": {"sts": {"endpoint_url": account.sts_url}},
                "role_arn": role_arn("tiering"),
                "assume_role_kwargs": {"ExternalId": "ours"},
            },
        )
        content = segment_bytes(1000)
        metadata = segment_metadata(len(content))
        data = replace(segment_data(content), encoding=Encoding(encryption=True))
        settings = load_settings(None, environ={}, overrides=given)
        with closing(open_storage(settings, hook.options(settings))) as storage:
            finished = copied(metadata, storage.copy_log_segment_data(metadata, data))
        with closing(open_storage(settings, hook.options(settings))) as storage:
            assert b"".join(storage.fetch_log_segment(finished)) == content
        assert account.asked_of_kms == ["TrentService.Encrypt", "TrentService.Decrypt"]
        assert {account.sessions[key].role for key in account.seen} == {"tiering"}


def test_the_environment_completes_the_connection(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
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
    assert RemoteStorageHook().options(settings).access_key_id == "an id"


@pytest.mark.parametrize("cluster", [None, "west"])
def test_a_mistyped_connection_is_named_and_not_replaced_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, cluster: str | None
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the worker")
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT", json.dumps(SECRET))
    with pytest.raises(AirflowFailException, match=r"\bmistyped\b"):
        RemoteStorageHook("mistyped", cluster).options(settings)


def test_the_log_names_the_connection(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(SECRET))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE__WEST", json.dumps({**SECRET, "login": "of west"}))
    for cluster, used, login in ((None, "lake", "an id"), ("west", "lake__west", "of west"), ("east", "lake", "an id")):
        caplog.clear()
        assert RemoteStorageHook("lake", cluster).options(settings).access_key_id == login
        assert [each.args for each in caplog.records if "connection" in each.msg] == [(used,)]


def test_the_hook_opens_the_store_that_the_settings_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

    config = tmp_path / "settings.yaml"
    config.write_text(f"state.directory: {tmp_path}\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(config))
    storage = RemoteStorageHook().get_conn()
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
